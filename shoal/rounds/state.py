"""Settings (fixed), Federation (what a checkpoint holds), Round (one attempt: all that a helper
needs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Batch, LastBatch, Model
from shoal.core.world_protocol import Drifting, Moment, World
from shoal.engines.api import Engine
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.methods.method import Method
from shoal.methods.slots import Part, combine
from shoal.methods.view import ClientCalls, ServerView
from shoal.rounds.client_memories import ClientStore
from shoal.rounds.uploads import Guard

if TYPE_CHECKING:
    from shoal.rounds.orders import Spent


# ---- rows mixed ----------------------------------------------------------------------------------
# Whether a network mixes the rows of a batch.

ROWS = 4  # real rows, and as many to pad with
TRIES = 8  # with other random numbers, where a network draws
APART = 1e-6  # of outputs that count as different, relative to the largest


@torch.no_grad()
def mixes_rows(task: Task, world: World) -> bool:
    """Whether real rows' outputs change when padding changes, in training mode.

    Batch normalisation over real rows does not; a network that subtracts the mean of its batch
    does. Tried on the first member's samples.
    """
    first = world.at(0).members[0]
    data = world.train(int(first), 0)
    if len(data) == 0:
        return False
    places = torch.arange(ROWS, device=data.rows.device) % len(data)
    x, y = data.pool.x[data.rows[places]], data.labels[places]
    weight = torch.cat([torch.ones(ROWS), torch.zeros(ROWS)]).to(x.device, task.dtype)
    model = task.initial(0).to(x.device)
    several = bool(getattr(task, "inputs", ()))
    paddings = (x[:1].expand_as(x), _others(data.pool.x, x, several))
    # rows may be mixed at random, and not in every step
    keys = torch.arange(TRIES, device=x.device) if getattr(task, "draws", False) else [None]
    for key in keys:
        found = []
        for padding in paddings:
            batch = Batch(torch.cat([x, padding]), torch.cat([y, y]), weight, key)
            outputs = task.forward(model.theta, batch, model.stats, True)
            found.append(torch.cat([outputs.logits[:ROWS].flatten(), outputs.stats]))
        one, other = found
        limit = APART * float(one.abs().max().clamp_min(1e-30))
        if bool(((one - other).abs() > limit).any()):
            return True
    return False


def _others(pool: Tensor, x: Tensor, several: bool) -> Tensor:
    """Samples that differ from the first one. Of ``several`` inputs some are whole numbers."""
    if x.is_floating_point() and not several:
        return 2 * x.flip(0) + 1
    differ = (pool != x[:1]).flatten(1).any(1).nonzero().squeeze(1)
    if not len(differ):
        return x
    return pool[differ[torch.arange(len(x), device=x.device) % len(differ)]]


# ---- federation ----------------------------------------------------------------------------------
# The whole changing state of a federation, and the fixed settings of a run.

Rates = Callable[[Moment], tuple[float, ...]]


@dataclass(frozen=True)
class Settings:
    """What does not change during a run."""

    program: ClientProgram
    world: World
    seed: int
    rates: Rates  # one rate per local epoch
    participation: int | float = 1.0
    sampling: str = "fixed"  # see shoal.rounds.cohort
    candidates: int | None = None  # whose loss is looked at; None: twice the cohort
    cohorts: tuple[tuple[int, ...], ...] | None = None  # the cohort of every round, if prescribed
    uniform: bool = False  # aggregation weights: uniform, or by samples
    batch: int | None = None  # rows per step; None: all of a client's
    steps: int | tuple[int, ...] | None = (
        None  # most per round; of several, client i's is [i % len]
    )
    shuffle: bool = True
    last_batch: LastBatch = "keep"
    lone_layer: str | None = None  # cannot train on a batch of one row
    guard: Guard = field(default_factory=Guard)
    start: Model | None = None
    clients_are_remote: bool = False  # clients' data and memories are on their own machines

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
    def oracle(self) -> Drifting | None:
        """The world, if it knows its concepts: a question about a protocol, too slow for a view."""
        return self.world if isinstance(self.world, Drifting) else None


@dataclass
class Federation:
    """What a checkpoint holds: models, parts' states, clients' memories, and where we are."""

    initial: Model
    models: list[Model]
    servers: list[tuple[Tree, ...]]  # one tuple per model, one state per part
    store: ClientStore = field(default_factory=ClientStore)
    # (model, part) -> number and payload of its last session_end; one count for all of them, so
    # that a single number says what a client has heard of
    endings: dict[tuple[int, int], tuple[int, Tree]] = field(default_factory=dict)
    ended: dict[tuple[int, int], int] = field(default_factory=dict)  # (client, model) -> heard of
    # -> stage of its once-payload; a model of -1 stands for what is frozen
    paid: dict[tuple[int, int], int] = field(default_factory=dict)
    noticed: bool = False
    round: int = 0
    turn: int = 0  # where members take turns, the lowest number that may be next

    @classmethod
    def fresh(cls, settings: Settings, initial: Model, moment: Moment, rate: float) -> Federation:
        """As at the start of a run."""
        models = [initial]
        bank = settings.method.only("initial_models")
        if bank is not None:
            view = blank_view(
                settings, initial, initial.theta, moment, rate, initial_stats=initial.stats
            )
            models = list(bank.initial_models(view, settings.seed))
        federation = cls(initial, models, [])
        for model in models:
            view = blank_view(
                settings, model, initial.theta, moment, rate, initial_stats=initial.stats
            )
            federation.servers.append(tuple(p.server_state(view) for p in settings.method.parts))
        return federation

    def use_models(
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
            self.turn,
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
        oracle=settings.oracle,
        classes=moment.classes,
        **more,
    )


# ---- context -------------------------------------------------------------------------------------
# A round as its helpers see it: one object with everything they need.
#
# ``Round`` says which federation, under which settings, at which moment, on which engine. It makes
# the views that a method's slots are given and is the only writer of parts' server states.


@dataclass(frozen=True)
class Round:
    """One attempt at a round, or a look at the federation between rounds.

    ``spent`` collects what questions and rehearsals cost; None where they are not of the method's
    own doing, as in an evaluation.
    """

    federation: Federation
    settings: Settings
    moment: Moment
    engine: Engine = field(default_factory=Loop)
    cohort: tuple[int, ...] = ()
    spent: Spent | None = None

    def attempt(self, cohort: tuple[int, ...]) -> Round:
        """The same round on a copy of the federation: an attempt that fails leaves no trace."""
        own = self.federation.snapshot()
        return Round(own, self.settings, self.moment, self.engine, cohort, self.spent)

    def at(self, moment: Moment) -> Round:
        """The same federation at another moment."""
        return replace(self, moment=moment)

    @property
    def lr_per_epoch(self) -> tuple[float, ...]:
        return self.settings.rates(self.moment)

    # ---- parts ----
    def filling(self, slot: str) -> tuple[tuple[int, Part], ...]:
        """The parts that fill a slot, with their numbers in the method."""
        return self.settings.method.numbered(slot)

    def run(self, slot: str, call: Callable[[int, Part, Any], Any], value: Any) -> Any:
        """``call(i, part, value so far)`` of the parts that fill a slot, joined by its rule."""
        return combine(slot, self.filling(slot), call, value)

    def only(self, slot: str) -> tuple[int, Part] | None:
        """The one part that fills a slot that allows one only, with its number."""
        return next(iter(self.filling(slot)), None)

    def view(
        self,
        part: int,
        model: int = 0,
        cohort: Sequence[int] | None = None,
        calls: ClientCalls | None = None,
        **more: Any,
    ) -> ServerView:
        """What a part sees of the server and one model; with ``calls``, it can reach clients."""
        federation = self.federation
        known = model < len(federation.servers)  # a part may look before its state exists
        return blank_view(
            self.settings,
            federation.models[model],
            federation.initial.theta,
            self.moment,
            self.lr_per_epoch[0],
            state=federation.servers[model][part] if known else (),
            cohort=self.cohort if cohort is None else tuple(cohort),
            calls=calls,
            models=tuple(federation.models),
            initial_stats=federation.initial.stats,
            **more,
        )

    def update(self, part: int, model: int, state: Tree) -> None:
        """A part's new server state beside one model."""
        states = self.federation.servers[model]
        self.federation.servers[model] = (*states[:part], state, *states[part + 1 :])

    def reset(self, model: int) -> None:
        """What a constructed start resets, as each part says."""
        for i, part in enumerate(self.settings.method.parts):
            if part.resets in ("server", "both"):
                self.update(i, model, part.server_state(self.view(i, model, ())))
            if part.resets == "both":
                self.federation.store.forget_part(i)

    def use_models(self, models: Sequence[Model]) -> None:
        """Use other models from here on; a new or replaced one starts with fresh states."""
        self.federation.use_models(self.settings, models, self.moment, self.lr_per_epoch[0])

    def last_models(self) -> Callable[[], Iterator[Tensor]] | None:
        """Reads what every present member trained last, for measures; None where no part keeps it,
        where members keep it themselves, and where several models would each need one."""
        federation, settings = self.federation, self.settings
        keepers = [
            (i, p)
            for i, p in enumerate(settings.method.parts)
            if type(p).last_model is not Part.last_model
        ]
        if not keepers or settings.clients_are_remote or len(federation.models) > 1:
            return None
        i, keeper = keepers[0]

        def read() -> Iterator[Tensor]:
            for member in self.moment.members:
                kept = federation.store.get(member, 0)
                memory = None if kept is None else kept[i]
                last = None if memory is None else keeper.last_model(memory)
                yield federation.initial.theta if last is None else last

        return read
