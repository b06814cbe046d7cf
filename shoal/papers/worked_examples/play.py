"""Plays a case: from hyper-parameters to a method, a world, a history of rounds and its figures.

A run is looked at by a part and an engine that change nothing (``RecordingPart``, ``Watched``), and
every round leaves a snapshot. A new kind of case is one more ``runner``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.task import QuadraticTask
from shoal.core.tree import Tree
from shoal.core.types import Kind, Model, Reduction, Work
from shoal.core.world_protocol import Moment, World
from shoal.engines.api import Order, Results
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.slots import Part, Stepped
from shoal.methods.view import ServerView, View
from shoal.papers.worked_examples.reading import number, one_of, readable, refuse_odd_values
from shoal.rounds.client_memories import Memories
from shoal.rounds.play import RoundReport, play_round
from shoal.rounds.state import Federation, Settings
from shoal.worlds.quadratic import Quadratics, Segment, batched

Case = dict[str, Any]
Hyper = dict[str, Any]
Values = Any  # numbers, strings, None, lists and maps: what JSON holds


@dataclass(frozen=True)
class CaseFigures:
    """What a case gave: the global model after every round (where there is one), and the rest."""

    models: Values = None
    extra: Values = None


Builder = Callable[[Hyper], Method]
Extras = Callable[["History"], dict[str, Values]]
Formula = Callable[[dict[str, Any], Hyper], dict[str, Values]]
Runner = Callable[[Case], CaseFigures]

BUILDERS: dict[str, Builder] = {}
EXTRAS: dict[str, Extras] = {}
FORMULAS: dict[str, Formula] = {}
RUNNERS: dict[str, Runner] = {}

_F = TypeVar("_F", bound=Callable[..., Any])


def extras(*names: str) -> Callable[[_F], _F]:
    """Registers what to read from the history of a run, for one or several methods."""
    return _into(EXTRAS, *names)


def formula(name: str) -> Callable[[_F], _F]:
    """Registers ``(problem, hyper-parameters) -> expected_extra`` for cases of kind ``formula``."""
    return _into(FORMULAS, name)


def runner(kind: str) -> Callable[[_F], _F]:
    """Registers how cases of one kind are played."""
    return _into(RUNNERS, kind)


def names_of(case: Case) -> list[str]:
    """The methods of a composition ``A + B``, in order.

    >>> names_of({"method": "FLASH + SPECIAL"})
    ['FLASH', 'SPECIAL']
    """
    return [name.strip() for name in str(case["method"]).split(" + ")]


@dataclass(frozen=True)
class MethodEntry:
    """How a method is made from the hyper-parameters of a case.

    ``needs`` and ``takes`` map the maker's arguments to hyper-parameters: those of ``needs`` must
    be given. ``only`` has values that change nothing and are the only ones known; ``default`` is
    what files write for an argument that is left at its default; ``unused`` may be given and is
    not part of the method.
    """

    make: Callable[..., Method]
    takes: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    unused: Sequence[str] = ()

    def __call__(self, hyper: Hyper) -> Method:
        for name, known in self.only.items():
            one_of(hyper, name, *known)
        for name in self.unused:
            hyper.get(name)
        given = {ours: hyper[theirs] for ours, theirs in self.needs.items()}
        given |= pick(hyper, self.takes)
        same = [name for name, value in self.default.items() if given.get(name) == value]
        return self.make(**{k: v for k, v in given.items() if k not in same})


@dataclass(frozen=True)
class StateFigures:
    """Figures by name: which value of which part's state, on the server and on every client."""

    server: Mapping[str, tuple[type[Part], str]] = field(default_factory=dict)
    clients: Mapping[str, tuple[type[Part], str]] = field(default_factory=dict)

    def __call__(self, history: History) -> dict[str, Values]:
        found: dict[str, Values] = {}
        for name, (part, value) in self.server.items():
            found[name] = [getattr(state, value).tolist() for state in history.states(part)]
        for name, (part, value) in self.clients.items():
            found[name] = history.memories(part, operator.attrgetter(value))
        return found


def names(same: str = "", **renamed: str) -> dict[str, str]:
    """Arguments and the hyper-parameters they come from.

    >>> names("beta mu", epochs="L")
    {'beta': 'beta', 'mu': 'mu', 'epochs': 'L'}
    """
    return {**{name: name for name in same.split()}, **renamed}


def pick(hyper: Hyper, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Those of the wanted hyper-parameters that are given."""
    return {ours: hyper[theirs] for ours, theirs in wanted.items() if theirs in hyper}


def register(builders: Mapping[str, Builder], extras: Mapping[str, Extras]) -> None:
    """Registers tables of builders and of what is read from a history."""
    for registry, entries in ((BUILDERS, builders), (EXTRAS, extras)):
        for name, entry in entries.items():
            _into(registry, name)(entry)


def _into(registry: dict[str, Any], *names: str) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        for name in names:
            if name in registry:
                raise ValueError(f"{name!r} is registered twice")
            registry[name] = function
        return function

    return register


# ---- a part and an engine that look on -----------------------------------------------------------
class Begun(NamedTuple):
    begun: Tensor  # the model this stretch began with
    delta: Tensor  # the combined displacement of the last round
    stats: Tensor  # the buffers this stretch began with


class Trip(NamedTuple):
    """Where a client began and where it ended."""

    start: Tensor
    end: Tensor


@dataclass(frozen=True, kw_only=True)
class RecordingPart(Part):
    """Sees the model each stretch begins with, what was aggregated, and every client's trip.

    Deviations: no paper; it only looks.
    """

    on: tuple[Kind, ...] = ("members", "domain", "classes", "concept")

    reduction: ClassVar[Reduction] = Reduction.STACK
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def server_state(self, view: ServerView) -> Tree:
        return Begun(view.theta, torch.zeros_like(view.theta), view.model.stats)

    def session_begins(self, view: ServerView) -> Tree:
        return Begun(view.theta, view.state.delta, view.model.stats)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Trip(view.start, view.x)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        assert view.uploads is not None
        return Stepped(theta, view.state._replace(delta=view.uploads.delta))


class Watched:
    """The loop engine, with a note of what went down, and of every client's payloads (rehearsed
    rounds left out)."""

    name = "loop"

    def __init__(self) -> None:
        self.loop = Loop()
        self.payloads: dict[int, tuple[Tree, ...]] = {}
        self.sent: tuple[Tree, ...] = ()

    def train(self, order: Order) -> Iterator[Results]:
        for results in self.loop.train(order):
            if order.round >= 0:
                for row, client in enumerate(results.clients):
                    self.payloads[client] = tree.row(results.payloads, row)
                self.sent = order.sent
            yield results

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self.loop.ask(order, question, payload)

    def close(self) -> None:
        self.loop.close()


# ---- what every round left -----------------------------------------------------------------------
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


# ---- from a case to settings ---------------------------------------------------------------------
def method_of(case: Case) -> Method:
    """The catalog entry, or a composition ``A + B``, with a recorder behind it."""
    hyper = case["hyperparameters"]
    first, *others = names_of(case)
    method = BUILDERS[first](hyper)
    for name in others:
        method = method | BUILDERS[name](hyper)
    refuse_odd_values(method)
    return method | Method("recorder", (RecordingPart(),))


def start_of(case: Case) -> tuple[float, ...]:
    """The initial model; the first one where there are several."""
    several = case["hyperparameters"].get("models_init")
    return tuple(map(float, case["w0"] if "w0" in case else several[0]))


def others_of(case: Case) -> tuple[tuple[float, ...], ...]:
    """The starts of further models."""
    return tuple(tuple(start) for start in case["hyperparameters"].get("models_init", ())[1:])


def world_of(case: Case) -> Quadratics:
    """The quadratics of every kind that is played."""
    problem, hyper, width = case["problem"], case["hyperparameters"], len(start_of(case))
    if case["kind"] == "steps":
        rounds = hyper["rounds_per_step"]
        return Quadratics(tuple(segment(p, rounds, width) for p in problem["steps"]), "concept")
    if case["kind"] == "batches":
        return batches_of(problem, hyper["rounds"], width)
    rows = int(hyper.get("steps_per_epoch", 1))
    if case["kind"] == "tasks":
        rounds = hyper["rounds_per_task"]
        tasks = tuple(segment(p, rounds, width) for p in problem["tasks"])
        if "task_classes" not in problem:
            return Quadratics(tasks, "domain", rows)
        return Quadratics(tasks, "classes", rows, classes=classes_of(problem))
    if case["kind"] == "sessions":
        groups, offsets, total = problem["groups"], list[int](), 0
        for group in groups:
            offsets.append(total)
            total += len(group["n"])
        sessions = (
            segment(groups[g], hyper["T"], width, offsets[g]) for g in problem["session_group"]
        )
        return Quadratics(tuple(sessions), "members", rows)
    if case["kind"] == "concepts":
        before, after = problem["concepts"]
        at = hyper["drift_at_round_index"]
        stretches = (segment(before, at, width), segment(after, hyper["rounds"] - at, width))
        return Quadratics(stretches, "concept", rows)
    return Quadratics((segment(problem, hyper["rounds"], width),), "members", rows)


def segment(problem: dict[str, Any], rounds: Any, width: int, offset: int = 0) -> Segment:
    """One quadratic for so many rounds; clients are numbered from ``offset``."""
    if not isinstance(rounds, int) or rounds < 1:
        raise UserError(f"rounds must be a whole number from 1 on, not {rounds!r:.40}")
    a, b = (tuple(tuple(map(float, row)) for row in problem[name]) for name in ("a", "b"))
    n = tuple(map(float, problem["n"]))
    if not len(a) == len(b) == len(n) > 0 or any(len(row) != width for row in (*a, *b)):
        raise UserError(
            f"a, b and n must have one entry per client, a and b {width} numbers in each"
        )
    stats = tuple(tuple(map(float, row)) for row in problem.get("stats", ()))
    return Segment(rounds, tuple(range(offset, offset + len(n))), a, b, n, stats)


def classes_of(problem: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The classes that each task brings; every one has a row of the head."""
    found = tuple(tuple(task) for task in problem["task_classes"])
    known = range(len(problem["head_rows"]))
    if len(found) != len(problem["tasks"]) or any(c not in known for task in found for c in task):
        raise UserError("task_classes must list, for every task, classes that head_rows has")
    return found


def task_of(case: Case) -> QuadraticTask:
    """The quadratic with its tensors' names, its head and its buffers."""
    problem, start = case["problem"], start_of(case)
    sizes = tuple((name, size) for name, size in problem.get("layout", ()))
    head = tuple(tuple(row) for row in problem.get("head_rows", ()))
    task = QuadraticTask(start, sizes, others=others_of(case), head=head)
    if "buffers" not in problem:
        return task
    given = problem["buffers"]
    names = tuple((name, size) for name, size in given["layout"])
    first = tuple(map(float, given["init"]))
    width = sum(size for _, size in names)
    shown = [row for group in problem["groups"] for row in group["stats"]]
    if any(len(row) != width for row in (first, *shown)):
        raise UserError(f"buffers.init and every client's stats must have {width} numbers")
    return replace(task, buffers=names, buffers_start=first, momentum=number(given, "momentum"))


def batches_of(problem: dict[str, Any], rounds: Any, width: int) -> Quadratics:
    """Clients with mini-batches of their own; each of them is read as a client would be."""
    own, n = [], problem["n"]
    for client in problem["batches"]:
        a, b = ([batch[name] for batch in client] for name in ("a", "b"))
        read = segment({"a": a, "b": b, "n": [1.0] * len(a)}, rounds, width)
        own.append(tuple(zip(read.a, read.b, strict=True)))
    if len(own) != len(n):
        raise UserError(
            f"batches and n must have one entry per client, not {len(own)} and {len(n)}"
        )
    return batched(tuple(own), tuple(map(float, n)), rounds)


def settings_of(case: Case) -> Settings:
    """Everything ``play_round`` needs; a case that cannot be read is the file's fault."""
    with readable():
        return _settings(case)


def _settings(case: Case) -> Settings:
    """In float64, with full gradients: a batch is one row, and a row is the whole client.

    Except in time steps, where a client with data of several has a row for each.
    """
    hyper = case["hyperparameters"]
    sgd = Sgd(momentum=hyper.get("momentum", 0.0), weight_decay=hyper.get("weight_decay", 0.0))
    world = world_of(case)
    epochs, steps = epochs_of(hyper, several=case["kind"] == "batches")
    weights = one_of(hyper, "aggregation", "uniform", "samples") or hyper["aggregation"]
    rate = 1.0
    if "local_solver" not in hyper:
        rate = number(hyper, "eta0" if "eta0" in hyper else "eta")
    return Settings(
        ClientProgram(method_of(case), task_of(case), sgd),
        world,
        seed=0,
        rates=lambda moment: (rate,) * epochs,
        cohorts=cohorts_of(case.get("participation"), world),
        uniform=weights == "uniform",
        batch=None if case["kind"] == "steps" else 1,
        steps=steps,
        shuffle=case["kind"] != "batches",
    )


def epochs_of(hyper: Hyper, several: bool) -> tuple[int, int | tuple[int, ...] | None]:
    """Local epochs, and at most so many steps; ``several``: an epoch has more than one of them."""
    if "local_solver" in hyper:  # the method's own step: one of them, at no rate
        return 1, None
    given = [name for name in ("K", "E", "L") if name in hyper]
    if len(given) != 1:
        raise UserError(f"needs one of K, E and L, and has {' and '.join(given) or 'none'}")
    length = hyper[given[0]]
    if isinstance(length, list):
        return max(length), tuple(length)
    several = several or hyper.get("steps_per_epoch", 1) != 1
    return int(length), int(length) if given == ["K"] and several else None


def cohorts_of(
    given: Sequence[Sequence[int]] | None, world: World
) -> tuple[tuple[int, ...], ...] | None:
    """The prescribed participants of every round; None is all members."""
    if given is None:
        return None
    cohorts = tuple(tuple(cohort) for cohort in given)
    if len(cohorts) != world.rounds:
        raise UserError(f"participation lists {len(cohorts)} rounds, there are {world.rounds}")
    for index, cohort in enumerate(cohorts):
        if not cohort or not set(cohort) <= set(world.at(index).members):
            raise UserError(f"participation of round {index} is {list(cohort)}, not clients there")
    return cohorts


# ---- kinds of cases ------------------------------------------------------------------------------
@runner("rounds")
def rounds(case: Case) -> CaseFigures:
    """Federated rounds on one set of clients."""
    history = play(settings_of(case))
    return CaseFigures(history.models, collected(case, history))


@runner("batches")
def batches(case: Case) -> CaseFigures:
    """As ``rounds``, with mini-batches: an epoch is one pass over them, in their order."""
    return rounds(case)


@runner("tasks")
def tasks(case: Case) -> CaseFigures:
    """Several sets of client losses one after another, the model carried over."""
    history = play(settings_of(case))
    ends = {"end_of_task_models": [s.models[0].theta.tolist() for s in history.stretches()]}
    return CaseFigures(history.models, merged(ends, collected(case, history)))


@runner("sessions")
def sessions(case: Case) -> CaseFigures:
    """Members change from session to session."""
    history = play(settings_of(case))
    seen = history.index(RecordingPart)
    rows = [
        {
            "session": s.moment.session,
            "w_init": s.servers[0][seen].begun.tolist(),
            "w_last": s.models[0].theta.tolist(),
            "buffers_init": s.servers[0][seen].stats.tolist(),
            "buffers_last": s.models[0].stats.tolist(),
        }
        for s in history.stretches()
    ]
    return CaseFigures(history.models, merged({"sessions": rows}, collected(case, history)))


@runner("formula")
def formulas(case: Case) -> CaseFigures:
    """What the method's section defines, on the given inputs."""
    with readable():
        found = FORMULAS[names_of(case)[0]](case["problem"], case["hyperparameters"])
    return CaseFigures(None, found)


def collected(case: Case, history: History) -> dict[str, Values]:
    """What all methods of a composition let us read."""
    found: Values = {}
    for name in names_of(case):
        if name in EXTRAS:
            found = merged(found, EXTRAS[name](history))
    return dict(found)


def merged(left: Values, right: Values) -> Values:
    """Two trees laid over each other; where both have a leaf, they must agree.

    >>> merged({"rows": [{"a": 1}]}, {"rows": [{"b": 2}], "c": 3})
    {'rows': [{'a': 1, 'b': 2}], 'c': 3}
    """
    if isinstance(left, dict) and isinstance(right, dict):
        both: dict[str, Any] = {**left, **right}
        for key in left.keys() & right.keys():
            both[key] = merged(left[key], right[key])
        return both
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [merged(a, b) for a, b in zip(left, right, strict=True)]
    if left != right:
        raise UserError(f"two methods of a composition report one key as {left!r} and {right!r}")
    return left
