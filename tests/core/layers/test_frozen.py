"""What is frozen, what rests, what has no sizes, several inputs."""

from __future__ import annotations

import pytest
import torch
from own_networks import NETWORKS, TABLE, OwnWorld
from support import SmallWorld, play, settings_for
from torch import nn

from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.layers.fitting import watched
from shoal.core.task import ModuleTask
from shoal.core.types import Input, joined_inputs, split_inputs
from shoal.engines.loop import Loop


def half_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].requires_grad_(False)
    return net


def test_frozen_parameters_are_in_no_vector_and_sent_once() -> None:
    task, world = ModuleTask(half_frozen, classes=3, seed=3), SmallWorld()
    federation, reports, _ = play(settings_for(catalog.fedavg(), world, task), Loop(), 2)
    assert task.layout.names == ("2.weight", "2.bias")
    trained, held = 4 * (5 * 3 + 3), 4 * (6 * 5 + 5)
    assert [r.bytes_up for r in reports] == [world.clients * trained] * 2
    assert [r.bytes_down for r in reports] == [
        world.clients * (trained + held), world.clients * trained
    ]  # fmt: skip
    plain = task.built(3).state_dict()
    after = task.export(federation.models[0])
    assert set(after) == set(plain)
    assert all(torch.equal(after[name], plain[name]) == name.startswith("0") for name in plain)


def test_values_of_what_is_frozen_follow_the_seed_and_have_a_digest() -> None:
    one, same, other = (ModuleTask(half_frozen, classes=3, seed=seed) for seed in (1, 1, 2))
    assert one == same and one != other and one.frozen_digest
    moved = one.holding({**other.frozen, "2.bias": torch.ones(3)})
    assert moved == other and "2.bias" not in moved.frozen
    assert ModuleTask(lambda: nn.Linear(6, 3)).frozen_digest == ""


class KeepsStill(nn.Module):
    """Puts its normalisation to rest whenever it is put in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def train(self, mode: bool = True) -> KeepsStill:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(x))
        return found


def test_normalisation_that_rests_keeps_its_statistics() -> None:
    resting = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    resting[1].eval()
    task = ModuleTask(lambda: resting, classes=3)
    assert task.stats_layout.names == ("0.running_mean", "0.running_var")
    assert ModuleTask(KeepsStill, classes=3).rests == {"norm"}
    # a network that comes in evaluation mode as a whole is to be trained
    assert not ModuleTask(lambda: nn.Sequential(nn.BatchNorm1d(6)).eval(), classes=3).rests


def test_several_inputs_by_name() -> None:
    own = NETWORKS["table of two inputs"]
    world = OwnWorld(own=own)
    parts = split_inputs(world.pool.x[:4], own.inputs)
    assert parts["kinds"].dtype is torch.int64 and parts["numbers"].shape == (4, 4)
    again, inputs = joined_inputs(parts)
    assert inputs == (TABLE[0], TABLE[1]) and torch.equal(again, world.pool.x[:4])
    wrong = (Input("numbers", (4,), False), Input("kind", (2,), True))
    with pytest.raises(UserError, match=r"samples of shape numbers \(4,\), kind \(2,\).*'kind'"):
        watched(own.build(), world.pool.x, (3,), wrong)


def test_numbers_that_would_be_rounded_are_refused() -> None:
    with pytest.raises(UserError, match="input 'id' has numbers that float32 cannot hold exactly"):
        joined_inputs({"id": torch.tensor([2**24 + 1]), "size": torch.ones(1)})
