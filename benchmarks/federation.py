"""The benchmarks' workloads as shoal federations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.bare import RATE, Workload, cohort_of
from shoal.engines.api import Engine
from shoal.engines.client_round import Program
from shoal.federation import Federation, Settings
from shoal.method import Method
from shoal.parts.local_sgd import Sgd
from shoal.round import play_round
from shoal.task import ModuleTask
from shoal.types import ClientData, Pool
from shoal.worlds.base import Moment


@dataclass(frozen=True)
class StillWorld:
    """The same members with the same rows in every round; beyond the pool, rows come again."""

    pool: Pool
    clients: int
    rows: int
    rounds: int = 10**6
    held: dict[int, ClientData] = field(default_factory=dict)  # as the project's own worlds do

    @property
    def pad(self) -> int:
        return 0

    def at(self, round: int) -> Moment:
        return Moment(round, 0, 0, range(self.clients), None, round, self.rounds)

    def train(self, client: int, round: int) -> ClientData:
        if client not in self.held:
            place = client % (len(self.pool.x) // self.rows)
            rows = torch.arange(place * self.rows, (place + 1) * self.rows)
            data = ClientData(self.pool, rows, self.pool.y[rows], float(self.rows))
            self.held[client] = data
        return self.held[client]

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}


class ShoalRounds:
    """A shoal federation on a workload, from the bare loop's start, with its cohorts."""

    def __init__(
        self,
        work: Workload,
        method: Method,
        engine: Engine,
        x: Tensor,
        y: Tensor,
        start: list[Tensor],
        rounds: int = 2000,
        epochs: int = 1,
        program: Program | None = None,
    ) -> None:
        task = ModuleTask(work.build, classes=10, dtype=x.dtype)
        self.program = program or Program(method, task, Sgd())
        pool = Pool(x.reshape(-1, *x.shape[2:]), y.reshape(-1))
        world = StillWorld(pool, work.clients, work.rows)
        cohorts = tuple(tuple(cohort_of(work, r)) for r in range(rounds))
        self.engine = engine
        self.settings = Settings(
            self.program,
            world,
            seed=0,
            rates=lambda moment: (RATE,) * epochs,
            cohorts=cohorts,
            uniform=True,
            batch=work.batch,
            shuffle=False,  # as the bare loop: rows in file order
        )
        named = dict(zip(task.layout.names, start, strict=True))
        self.federation = Federation.fresh(self.settings, task.pack(named), world.at(0), RATE)
        self.before: Moment | None = None

    def round(self, number: int) -> None:
        moment = self.settings.world.at(number)
        play_round(self.federation, self.settings, moment, self.engine, self.before)
        self.before = moment

    def named(self) -> list[Tensor]:
        """Parameters in the module's order, to compare with the bare loop."""
        exported = self.settings.task.export(self.federation.models[0])
        return [exported[name] for name in self.settings.task.layout.names]
