"""The whole changing state of a federation, and the fixed settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from shoal.engines.client_round import Program
from shoal.guard import Guard
from shoal.method import Method
from shoal.rows_mixed import mixes_rows
from shoal.store import ClientStore
from shoal.task import Task
from shoal.tree import Tree
from shoal.types import LastBatch, Model
from shoal.view import ServerView
from shoal.worlds.base import Drifting, Moment, World

Rates = Callable[[Moment], tuple[float, ...]]


@dataclass(frozen=True)
class Settings:
    """What does not change during a run."""

    program: Program
    world: World
    seed: int
    rates: Rates  # one rate a local epoch
    participation: int | float = 1.0
    sampling: str = "fixed"  # or "bernoulli"
    cohorts: tuple[tuple[int, ...], ...] | None = None  # the cohort of every round, if prescribed
    uniform: bool = False  # aggregation weights: uniform, or by samples
    batch: int | None = None
    steps: int | tuple[int, ...] | None = None
    shuffle: bool = True
    last_batch: LastBatch = "keep"
    lone_layer: str | None = None  # cannot train on a batch of one row
    guard: Guard = field(default_factory=Guard)
    start: Model | None = None
    elsewhere: bool = False  # clients' data and memories are on their own machines

    def cap(self, client: int) -> int | None:
        """At most so many local steps of a client in a round."""
        return self.steps[client % len(self.steps)] if isinstance(self.steps, tuple) else self.steps

    @property
    def method(self) -> Method:
        return self.program.method

    @property
    def task(self) -> Task:
        return self.program.task

    @cached_property
    def pad(self) -> int:
        """The run-wide length of a short batch; 0 where every client has equally many rows, and
        where padding would change what a network makes of real rows."""
        pad = self.world.pad
        return 0 if pad and mixes_rows(self.task, self.world) else pad

    @cached_property
    def truth(self) -> Drifting | None:
        """The world, if it knows its concepts: a question about a protocol, too slow for a view."""
        return self.world if isinstance(self.world, Drifting) else None


@dataclass
class Federation:
    """What a checkpoint holds: models, parts' states, clients' memories, and where we are."""

    initial: Model
    models: list[Model]
    servers: list[tuple[Tree, ...]]  # one tuple a model, one state a part
    store: ClientStore = field(default_factory=ClientStore)
    # (model, part) -> number and payload of its last session_end; one count for all of them, so
    # that a single number says what a client has heard of
    endings: dict[tuple[int, int], tuple[int, Tree]] = field(default_factory=dict)
    ended: dict[tuple[int, int], int] = field(default_factory=dict)  # (client, model) -> heard of
    paid: dict[tuple[int, int], int] = field(default_factory=dict)  # -> stage of its once-payload
    noticed: bool = False
    round: int = 0

    @classmethod
    def fresh(cls, settings: Settings, initial: Model, moment: Moment, rate: float) -> Federation:
        """As at the start of a run."""
        models = [initial]
        bank = settings.method.only("init_bank")
        if bank is not None:
            view = blank_view(
                settings, initial, initial.theta, moment, rate, initial_stats=initial.stats
            )
            models = list(bank.init_bank(view, settings.seed))
        federation = cls(initial, models, [])
        for model in models:
            view = blank_view(
                settings, model, initial.theta, moment, rate, initial_stats=initial.stats
            )
            federation.servers.append(tuple(p.server_state(view) for p in settings.method.parts))
        return federation

    def regrouped(
        self, settings: Settings, models: Sequence[Model], moment: Moment, rate: float
    ) -> None:
        """Other models from here on; a new or replaced one starts with fresh states."""
        for k, model in enumerate(models):
            if k < len(self.models) and model is self.models[k]:
                continue
            first = self.initial
            view = blank_view(settings, model, first.theta, moment, rate, initial_stats=first.stats)
            fresh = tuple(p.server_state(view) for p in settings.method.parts)
            self.models[k : k + 1], self.servers[k : k + 1] = [model], [fresh]
            self.store.forget_model(k)
            self.ended = {key: n for key, n in self.ended.items() if key[1] != k}
            self.paid = {key: stage for key, stage in self.paid.items() if key[1] != k}
            self.endings = {key: end for key, end in self.endings.items() if key[0] != k}

    def snapshot(self) -> Federation:
        """This very state, to go back to: tensors are never written in place, so none is copied."""
        return Federation(
            self.initial,
            list(self.models),
            list(self.servers),
            self.store.copy(),
            dict(self.endings),
            dict(self.ended),
            dict(self.paid),
            self.noticed,
            self.round,
        )

    def become(self, other: Federation) -> None:
        """Take over the state of another one, which nobody uses from here on."""
        vars(self).update(vars(other))


def blank_view(
    settings: Settings, model: Model, initial: Tensor, moment: Moment, rate: float, **more: Any
) -> ServerView:
    """A server view without state or uploads; slots add what they may see."""
    return ServerView(
        state=more.pop("state", ()),
        model=model,
        initial=initial,
        round=moment.round,
        session=moment.session,
        stage=moment.stage,
        shift=moment.shift,
        members=moment.members,
        cohort=more.pop("cohort", ()),
        task=settings.task,
        rate=rate,
        seed=settings.seed,
        truth=settings.truth,
        classes=moment.classes,
        **more,
    )
