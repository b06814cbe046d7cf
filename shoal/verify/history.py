"""Plays a whole world through ``play_round`` and keeps what every round left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.federation import Federation, Settings
from shoal.part import Part
from shoal.round import RoundReport, play_round
from shoal.store_files import Memories
from shoal.tree import Tree
from shoal.types import Model
from shoal.verify.recorder import Watched
from shoal.worlds.base import Moment


@dataclass(frozen=True)
class Snapshot:
    """A federation after one round. Parts never change a tensor in place, so nothing is copied."""

    moment: Moment
    models: tuple[Model, ...]
    servers: tuple[tuple[Tree, ...], ...]
    memories: dict[tuple[int, int], Memories]
    payloads: dict[int, tuple[Tree, ...]]  # of this round's participants, in their order
    report: RoundReport
    sent: tuple[Tree, ...] = ()  # what went down for every part


@dataclass(frozen=True)
class History:
    """All rounds of a run, and how to read a part's states out of them."""

    settings: Settings
    rounds: tuple[Snapshot, ...]

    @property
    def clients(self) -> list[int]:
        """Everybody who is ever a member."""
        return sorted({int(c) for snapshot in self.rounds for c in snapshot.moment.members})

    @property
    def models(self) -> list[list[float]]:
        """The first global model after every round."""
        return [snapshot.models[0].theta.tolist() for snapshot in self.rounds]

    def index(self, part: type[Part]) -> int:
        """Where the first part of that type stands in the method."""
        return next(i for i, p in enumerate(self.settings.method.parts) if isinstance(p, part))

    def states(self, part: type[Part], model: int = 0) -> list[Tree]:
        """A part's server state after every round."""
        i = self.index(part)
        return [snapshot.servers[model][i] for snapshot in self.rounds]

    def payloads(self, part: type[Part]) -> list[dict[str, Tree]]:
        """What every participant of every round uploaded for a part, by the id as a string."""
        i = self.index(part)
        return [{str(c): sent[i] for c, sent in s.payloads.items()} for s in self.rounds]

    def memories(
        self, part: type[Part], read: Callable[[Tree], Tensor], model: int = 0
    ) -> list[list[Any]]:
        """``read`` of a part's memory for [round][client], all clients; unseen ones give zeros."""
        i = self.index(part)
        zeros = [0.0] * self.rounds[0].models[0].theta.numel()

        def one(snapshot: Snapshot, client: int) -> Any:
            kept = snapshot.memories.get((client, model))
            return zeros if kept is None or kept[i] is None else read(kept[i]).tolist()

        return [[one(snapshot, c) for c in self.clients] for snapshot in self.rounds]

    def stretches(self) -> list[Snapshot]:
        """The last snapshot of every session or task."""
        following = [*self.rounds[1:], None]
        return [
            now
            for now, after in zip(self.rounds, following, strict=True)
            if after is None or after.moment.shift is not None
        ]


def play(settings: Settings) -> History:
    """All rounds of the world, on the loop engine, by ``play_round`` itself."""
    world, engine = settings.world, Watched()
    first = world.at(0)
    rate = settings.rates(first)[0]
    federation = Federation.fresh(settings, settings.task.initial(0), first, rate)
    before: Moment | None = None
    rounds = []
    for index in range(world.rounds):
        moment = world.at(index)
        engine.payloads = {}
        report = play_round(federation, settings, moment, engine, before)
        before = moment
        rounds.append(
            Snapshot(
                moment,
                tuple(federation.models),
                tuple(federation.servers),
                dict(federation.store.items()),
                engine.payloads,
                report,
                engine.sent,
            )
        )
    return History(settings, tuple(rounds))
