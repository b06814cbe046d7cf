"""The benchmarks' workloads as shoal federations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.bare import RATE, Workload, cohort_of
from benchmarks.checkouts import fast_engine, program_of
from benchmarks.loads import Load
from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.core.types import ClientData, Model, Pool
from shoal.core.world_protocol import Moment
from shoal.methods.method import Method
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Settings

if TYPE_CHECKING:
    from shoal.data.augment import Augment
    from shoal.engines.api import Engine
    from shoal.engines.client_round import ClientProgram


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

    def span(self, client: int) -> tuple[int, int]:
        """Where its rows begin and end in the pool."""
        place = client % (len(self.pool.x) // self.rows)
        return place * self.rows, (place + 1) * self.rows

    def train(self, client: int, round: int) -> ClientData:
        if client not in self.held:
            begin, end = self.span(client)
            rows, labels = torch.arange(begin, end), self.pool.y[begin:end]
            self.held[client] = ClientData(self.pool, rows, labels, float(end - begin))
        return self.held[client]

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class SizedWorld(StillWorld):
    """Members with rows of their own, one after another in the pool; ``rows`` are at most."""

    ends: tuple[int, ...] = ()  # where a member begins is where the one before ends
    ragged: bool = False

    @classmethod
    def of(cls, pool: Pool, sizes: tuple[int, ...]) -> SizedWorld:
        ends, ragged = tuple(accumulate(sizes, initial=0)), len(set(sizes)) > 1
        return cls(pool, len(sizes), max(sizes), ends=ends, ragged=ragged)

    @property
    def pad(self) -> int:
        return self.rows if self.ragged else 0

    def span(self, client: int) -> tuple[int, int]:
        return self.ends[client], self.ends[client + 1]


class Rounds:
    """A federation whose rounds are played when they are asked for."""

    def __init__(
        self,
        program: ClientProgram,
        world: StillWorld,
        cohorts: tuple[tuple[int, ...], ...],
        engine: Engine,
        start: Model,
        batch: int,
        epochs: int = 1,
        uniform: bool = False,
    ) -> None:
        self.program, self.engine = program, engine
        self.settings = Settings(
            program,
            world,
            seed=0,
            rates=lambda moment: (RATE,) * epochs,
            cohorts=cohorts,
            uniform=uniform,
            batch=batch,
            shuffle=False,  # as the bare loop: rows in file order
        )
        self.federation = Federation.fresh(self.settings, start, world.at(0), RATE)
        self.before: Moment | None = None

    def round(self, number: int) -> None:
        moment = self.settings.world.at(number)
        play_round(self.federation, self.settings, moment, self.engine, self.before)
        self.before = moment

    def model(self) -> dict[str, Tensor]:
        """Parameters and running statistics by name."""
        return self.settings.task.export(self.federation.models[0])


class ShoalRounds(Rounds):
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
        program: ClientProgram | None = None,
    ) -> None:
        task = ModuleTask(work.build, classes=10, dtype=x.dtype)
        program = program or program_of(method, task)
        pool = Pool(x.reshape(-1, *x.shape[2:]), y.reshape(-1))
        cohorts = tuple(tuple(cohort_of(work, r)) for r in range(rounds))
        named = dict(zip(task.layout.names, start, strict=True))
        world = StillWorld(pool, work.clients, work.rows)
        super().__init__(
            program, world, cohorts, engine, task.pack(named), work.batch, epochs, uniform=True
        )

    def named(self) -> list[Tensor]:
        """Parameters in the module's order, to compare with the bare loop."""
        exported = self.model()
        return [exported[name] for name in self.settings.task.layout.names]


def method_of(name: str) -> Method:
    """A method of the catalog as it is measured: FLASH without early stopping (all take the same
    steps), FedAgg with the one epoch that a round has."""
    settings: dict[str, dict[str, Any]] = {"flash": {"gamma": None}, "fedagg": {"epochs": 1}}
    made: Method = catalog.METHODS[name](**settings.get(name, {}))
    return made


def rounds_of(
    load: Load,
    x: Tensor,
    y: Tensor,
    rounds: int,
    threads: int | None,
    dtype: torch.dtype,
    augment: Augment | None = None,
    method: str = "fedavg",
) -> Rounds:
    """A method on a load, weighted by rows."""
    task = ModuleTask(load.build, classes=load.classes, dtype=dtype)
    program = program_of(method_of(method), task)
    if augment is not None:
        program = replace(program, augment=augment)
    world, start = SizedWorld.of(Pool(x, y), load.sizes), task.pack(load.start(dtype))
    return Rounds(program, world, load.cohorts(rounds), fast_engine(threads), start, load.batch)
