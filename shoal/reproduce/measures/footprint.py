"""How much the footprint of a group depends on how many rows its members hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal import rng
from shoal.config.build import Plan, build
from shoal.context import Round
from shoal.federation import Federation
from shoal.reach import ServerCalls
from shoal.reproduce.measures import Reading, measure_of_model
from shoal.rundir import RunDir
from shoal.task import ModuleTask
from shoal.types import ClientData

PROBE_RATE = 0.5  # times the session's rate, as released


@measure_of_model
def footprint_share(run: Reading, *, share: float, group: int = 0) -> float | None:
    """Distance of a group's footprint on a share of everybody's rows to that on all rows, in
    percent of the distance to the other group's footprint. The run is the pilot: its last model is
    where probes begin. Distances are those of the released code (unit length a weight tensor).
    """
    plan, pilot = _pilot(run.path)
    other = 1 - group
    full, less = (_footprint(plan, pilot, group, s) for s in (1.0, share))
    far = _distance(plan, full, _footprint(plan, pilot, other, 1.0))
    return 100.0 * _distance(plan, full, less) / far if far else None


@cache
def _pilot(path: Path) -> tuple[Plan, Tensor]:
    plan = build(Reading(path).config)
    task = plan.settings.task
    assert isinstance(task, ModuleTask)
    return plan, task.pack(load_file(RunDir(path).model)).theta


@dataclass(frozen=True)
class Thinned:
    """A world in which members hold a share of their rows."""

    world: Any
    share: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def train(self, client: int, round: int) -> ClientData:
        data: ClientData = self.world.train(client, round)
        if self.share >= 1.0:
            return data
        draw = rng.generator(self.world.seed, rng.Purpose.DATA, client)
        count = max(1, round_half(self.share * len(data)))
        kept = torch.from_numpy(draw.permutation(len(data))[:count]).sort().values
        return ClientData(data.pool, data.rows[kept], data.labels[kept], float(count))


def round_half(value: float) -> int:
    return int(value + 0.5)


def _footprint(plan: Plan, pilot: Tensor, group: int, share: float) -> Tensor:
    """One rehearsed round from the pilot model by all members of a group, minus the pilot."""
    settings = replace(plan.settings, world=Thinned(plan.world, share))
    size = int(plan.config.world.options["members"]) // 2
    moment = replace(plan.world.at(0), members=range(group * size, (group + 1) * size), shift=None)
    rate = settings.rates(moment)[0]
    trial = Federation.fresh(settings, plan.initial, moment, rate)
    clients = ServerCalls(Round(trial, settings, moment), 0)
    return clients.rehearse(pilot, 1, PROBE_RATE * rate) - pilot


def _distance(plan: Plan, one: Tensor, other: Tensor) -> float:
    found = []
    for name, where in plan.settings.task.layout.slices.items():
        if "bias" not in name:
            a, b = (g[where] / torch.linalg.vector_norm(g[where]) for g in (one, other))
            found.append(float(torch.linalg.vector_norm(a - b)))
    return sum(found) / len(found)
