"""Adapters of a config: on which network, of which ranks, and the file that a base comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.config.schema import Config, ModelChoice
from shoal.core.errors import UserError
from shoal.core.layers.fitting import materialise
from shoal.core.task import digest_of
from shoal.core.world_protocol import World
from shoal.methods.adapter_rules import Ranks
from shoal.models.adapters import AdaptedNetwork, Adapters


def ranks_of(config: Config, world: World) -> Ranks:
    """The members' ranks; every member of every round must have one."""
    assert config.adapters is not None
    given = dict(config.adapters.ranks)
    default = given.pop("default", None)
    ranks = Ranks(default, tuple(sorted((int(member), r) for member, r in given.items())))
    if given:
        there = {int(m) for round in range(world.rounds) for m in world.at(round).members}
        own = {member for member, _ in ranks.own}
        if nobody := sorted(own - there):
            raise UserError(f"adapters.rank: member {nobody[0]} is there in no round of this world")
        if default is None and (left := sorted(there - own)):
            ranks.of(left[0])
    return ranks


def adapted(
    config: Config, make: Callable[[], nn.Module], sample: torch.Tensor
) -> Callable[[], nn.Module]:
    """Builds the network with adapters, its base from ``model.init`` where that is a file."""
    own = config.adapters
    assert own is not None
    layers = Adapters(own.rule, max(own.ranks.values()), own.alpha, own.targets, own.trained)
    network = AdaptedNetwork(make, layers, sample)
    if config.model.init == "random":
        return network
    digest = digest_of(read_tensors(Path(config.model.init)))
    return replace(network, make=Pretrained(make, config.model, digest, sample))


@dataclass(frozen=True)
class Pretrained:
    """Builds a network with the tensors of a file; two that say the same are equal."""

    make: Callable[[], nn.Module]
    choice: ModelChoice
    digest: str
    sample: torch.Tensor = field(repr=False, compare=False)

    def __call__(self) -> nn.Module:
        network, tensors = self.make(), read_tensors(Path(self.choice.init))
        materialise(network, self.sample)
        own = network.state_dict()
        check_tensors(self.choice, tensors, {n: tuple(t.shape) for n, t in own.items()})
        network.load_state_dict({name: tensors[name] for name in own})
        return network


def check_tensors(
    choice: ModelChoice, tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, Any]
) -> None:
    """Names and shapes must be the model's own."""
    for name, shape in wanted.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            what = f"of shape {found}" if found is not None else "missing"
            raise UserError(
                f"model.init: in {choice.init}, tensor {name!r} is {what}, but model "
                f"{choice.name!r} needs {shape}"
            )


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"model.init: {path} cannot be read ({reason})") from None
