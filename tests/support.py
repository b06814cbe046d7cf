"""A small federation in memory, for laws that every method and engine must keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shoal import models
from shoal.core.task import ModuleTask, Task
from shoal.core.types import ClientData, Kind, Pool, Shift
from shoal.core.world_protocol import Moment, TrainingOnly
from shoal.engines.api import Engine
from shoal.engines.client_round import ClientProgram
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.slots import Part
from shoal.rounds.play import RoundReport, play_round
from shoal.rounds.state import Federation, Settings


@dataclass(frozen=True)
class SmallWorld(TrainingOnly):
    """``clients`` clients with random data; ``shifts`` says what changes at which round."""

    clients: int = 6
    rows: tuple[int, ...] = (12, 7, 20, 12, 5, 9)
    features: tuple[int, ...] = (6,)
    classes: int = 3
    rounds: int = 6
    shifts: dict[int, Kind] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def _pool(self) -> Pool:
        generator = torch.Generator().manual_seed(5)
        total = sum(self.rows[i % len(self.rows)] for i in range(self.clients))
        x = torch.randn(2 * total, *self.features, generator=generator, dtype=torch.float64)
        y = torch.randint(0, self.classes, (2 * total,), generator=generator)
        return Pool(x.to(self.dtype), y)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", self._pool())

    @property
    def pad(self) -> int:
        sizes = {self.rows[i % len(self.rows)] for i in range(self.clients)}
        return 0 if len(sizes) == 1 else max(sizes)

    def at(self, round: int) -> Moment:
        changes = sorted(r for r in self.shifts if r <= round)
        sessions = [r for r in changes if self.shifts[r] == "members"]
        stages = [r for r in changes if self.shifts[r] in ("domain", "classes")]
        kind = self.shifts.get(round)
        shift = Shift(round, frozenset([kind])) if kind else None
        half = len(sessions) % 2
        members = tuple(range(self.clients))
        if sessions or "members" in self.shifts.values():
            members = tuple(c for c in members if c % 2 == half)
        return Moment(round, len(sessions), len(stages), members, shift, 0, self.rounds)

    def train(self, client: int, round: int) -> ClientData:
        pool: Pool = self.pool  # type: ignore[attr-defined]
        begin = sum(self.rows[i % len(self.rows)] for i in range(client))
        rows = torch.arange(begin, begin + self.rows[client % len(self.rows)])
        rows = rows + self.at(round).stage * (len(pool.y) // 2) % len(pool.y)
        return ClientData(pool, rows, pool.y[rows], float(len(rows)))

    def block(self, client: int, round: int) -> int:
        return self.at(round).stage


def small_task(
    model: str = "mlp", world: SmallWorld | None = None, dtype: torch.dtype = torch.float32
) -> ModuleTask:
    world = world or SmallWorld()

    def build() -> nn.Module:
        options = {"hidden": (5,)} if model == "mlp" else {}
        return models.build(model, world.features, world.classes, **options)

    return ModuleTask(build, classes=world.classes, dtype=dtype)


def settings_for(
    method: Method, world: Any, task: Task, optimizer: Part | None = None, **more: Any
) -> Settings:
    epochs, lr = more.pop("epochs", 2), more.pop("lr", 0.1)
    more.setdefault("batch", 4)
    more.setdefault("uniform", method.weights == "equal")
    program = ClientProgram(method, task, optimizer or Sgd())
    return Settings(program, world, seed=3, rates=lambda m: (lr,) * epochs, **more)


def play(
    settings: Settings, engine: Engine, rounds: int
) -> tuple[Federation, list[RoundReport], list[Tensor]]:
    """Rounds from the start; the federation, the reports, and the model after each round."""
    first = settings.world.at(0)
    initial = settings.start or settings.task.initial(settings.seed)
    federation = Federation.fresh(settings, initial, first, settings.rates(first)[0])
    before, reports, models_ = None, [], []
    for index in range(rounds):
        moment = settings.world.at(index)
        reports.append(play_round(federation, settings, moment, engine, before))
        models_.append(federation.models[0].theta.clone())
        before = moment
    return federation, reports, models_
