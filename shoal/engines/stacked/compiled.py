"""A program's functions over a chunk of clients, traced once for each shape and kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from threading import Lock, local
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from shoal.core import tree
from shoal.core.task import with_own_modules
from shoal.core.tree import Tree
from shoal.core.types import Batch, Work
from shoal.engines.api import Lender, known
from shoal.engines.client_round import Carry, ClientProgram, Ended, Given, WholeData
from shoal.engines.compiler.cache import Functions, with_moment
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.compile import Replay, compile_step
from shoal.engines.compiler.graph import form_of
from shoal.methods.view import Clock
from shoal.models.registry import Blueprint, maker

# Axes of a Given for vmap: clients share what is sent to all of them.
_AXES = Given(None, None, None, 0, 0, None)  # type: ignore[arg-type]


class StepCall(NamedTuple):
    """What a step of some clients reads and changes, and when it is taken."""

    given: Given
    start: Tensor
    carry: Carry
    batch: Batch
    rate: Tensor
    clock: Clock
    noise: tuple[Tree, ...] = ()


class Bound(NamedTuple):
    """The tensors that a replay works on: what a step updates, and what it only reads."""

    carry: list[Tensor]
    fixed: list[Tensor]


class Compiled:
    """One program, stacked (clients on the first axis) or for one client at a time.

    Functions see ``[C, ...]`` tensors either way; unstacked, C is 1 and the axis is dropped inside.
    """

    def __init__(self, program: ClientProgram, stacked: bool, twin: Compiled | None = None) -> None:
        """``twin``: of a program that is the same but for what goes up; they share traces."""
        self.program = program
        self.stacked = stacked
        self.plain_end = not (program.fillers("client_end") or program.fillers("upload"))
        self._any_epoch = stacked  # whether one trace of an epoch's end serves all epochs
        self._unmapped: set[Hashable] = set()  # what a lone client does that cannot be mapped
        self._steps: dict[Any, tuple[tuple[str, ...], dict[Any, Replay | Untraceable]]] = {}
        self._tracing, self._own = Lock(), local()
        self._said: dict[str, None] = {}  # what was refused in compiling steps, in order
        self._functions = Functions(self._tracing)
        if twin is not None:
            self._steps, self._functions = twin._steps, twin._functions
            self._tracing, self._said = twin._tracing, twin._said

    @property
    def notes(self) -> list[str]:
        """What was refused in compiling this program, a sentence each."""
        return [*self._said, *self._functions.notes]

    # ---- once per round or epoch ----
    def start(
        self,
        given: Given,
        rate: Tensor,
        local: WholeData,
        clock: Clock,
        lender: Lender | None = None,
    ) -> tuple[Tensor, Carry]:
        """Start points and fresh carries of all clients; what steps change has its own memory, or,
        for models that nobody keeps, what is lent."""
        clients = given.n.shape[0]
        program = self.program
        if program.plain_start:
            x = given.received.expand(clients, -1)
            x = lender.room(clients, given.received).copy_(x) if lender else x.clone()
            stats = given.stats.expand(clients, -1).clone()
            none = ((),) * len(program.method.parts)
            return given.received, Carry(x, stats, none, (), x.new_zeros(clients))

        def mapped(given: Given, rate: Tensor, local: WholeData) -> Tree:
            dims = (given_axes(given), None, local_axes(local), None)
            return self._each("start", program.start, dims)(given, rate, local, clock)

        start, carry = self.run("start", mapped, (given, rate, local), clock)
        scratches = tuple(
            tree.clone(own) if part.fills("after_step") else own
            for part, own in zip(program.method.parts, carry.scratches, strict=True)
        )
        x, stats, _, optimizer, rate_sum = carry
        shared = clients > 1 and start.stride(0) == 0  # everybody starts at one point
        return start[0] if shared else start, Carry(
            x.clone(),
            stats.clone(),
            scratches,
            tree.clone(optimizer),
            rate_sum.clone() if program.fillers("rate") else rate_sum,
        )

    def epoch_end(
        self,
        given: Given,
        start: Tensor,
        carry: Carry,
        rate: Tensor,
        local: WholeData,
        clock: Clock,
    ) -> tuple[Carry, Tensor]:
        """The carry after an epoch, and who stops."""

        def mapped(
            given: Given, start: Tensor, carry: Carry, rate: Tensor, epoch: Tensor, local: WholeData
        ) -> Tree:
            then = clock.at_any_epoch(epoch) if self._any_epoch else clock
            dims = (given_axes(given), start_axis(start), 0, None, local_axes(local), None)
            each = self._each("epoch_end", self.program.epoch_end, dims)
            moved, stop = each(given, start, carry, rate, local, then)
            kinds = [[t.dtype for t in tree.leaves(state)] for state in (moved, carry)]
            if self._any_epoch and kinds[0] != kinds[1]:
                raise TypeError("it changes the type of a client's state")
            return moved, stop

        (epoch,) = clock.key(("epoch",))
        arguments = (given, start, carry, rate, known(epoch, torch.float64), local)
        try:
            found = self.run("epoch_end", mapped, arguments, clock)
        except Untraceable:
            if not self._any_epoch:
                raise
            self._any_epoch = False  # a part decides something by the epoch: each has its trace
            found = self.run("epoch_end", mapped, arguments, clock)
        moved, stop = found
        # what did not change is in memory of its own already
        pairs = zip(tree.leaves(moved), tree.leaves(carry), strict=True)
        return tree.rebuild(moved, [new if new is old else new.clone() for new, old in pairs]), stop

    def end(
        self,
        given: Given,
        start: Tensor,
        carry: Carry,
        work: Work | None,
        rate: Tensor,
        local: WholeData,
        clock: Clock,
    ) -> Ended:
        if self.plain_end:
            none = ((),) * len(self.program.method.parts)
            return Ended(carry.x.sub_(given.received), carry.stats, none, given.memories)

        def mapped(
            given: Given, start: Tensor, carry: Carry, work: Work, rate: Tensor, local: WholeData
        ) -> Tree:
            dims = (given_axes(given), start_axis(start), 0, 0, None, local_axes(local), None)
            each = self._each(kind, self.program.end, dims)
            return each(given, start, carry, work, rate, local, clock)

        kind = "end" if self.program.uploads else "end, nothing sent"
        ended: Ended = self.run(kind, mapped, (given, start, carry, work, rate, local), clock)
        return ended

    def run(
        self, kind: Hashable, mapped: Callable[..., Tree], arguments: tuple[Tree, ...], clock: Clock
    ) -> Tree:
        """``mapped(*arguments)``, the last of which is a ``WholeData``, recorded for shapes that
        come again; ``kind`` says what it is."""
        try:
            return self._functions.run(kind, mapped, arguments, clock)
        except Untraceable:
            if self.stacked or kind in self._unmapped:
                raise
            self._unmapped.add(kind)  # recurrent layers cannot be mapped
            return self._functions.run(kind, mapped, arguments, clock)

    def _each(
        self, kind: Hashable, function: Callable[..., Tree], dims: Any
    ) -> Callable[..., Tree]:
        """The function of every client; of a lone one without mapping, where that cannot be."""
        if kind not in self._unmapped:
            return vmap(function, in_dims=dims)

        def alone(*arguments: Tree) -> Tree:
            rows = [_first(value, dim) for value, dim in zip(arguments, dims, strict=True)]
            return tree.apply(lambda leaf: leaf.unsqueeze(0), function(*rows))

        return alone

    # ---- the step ----
    def step(self, call: StepCall, real: Callable[[], Batch]) -> tuple[Replay, Bound]:
        """The replay for these shapes, and what to bind it to.

        The call's batch may be tensors without memory; ``real`` makes those that a new trace is
        tried on.
        """
        clock = call.clock
        # everything that a compiled step depends on: how the trees look, and how each tensor lies
        state, homes = form_of(call.carry)
        held, fixed = form_of((call.rate, call.given, call.start))
        shape = (state, held, form_of((call.batch, call.noise))[0])
        bound = Bound(homes, fixed)
        if not self.stacked:
            bound = self.bound_to(call.given, call.start, call.carry, call.rate)
        # what a trace read of the clock, and the traces by what was read
        names, traces = self._steps.get(shape, ((), {}))
        found = traces.get(clock.key(names))
        if found is None:
            with self._tracing:  # two threads that need the same step compile it once
                names, traces = self._steps.get(shape, ((), {}))
                found = traces.get(clock.key(names))
                if found is None:
                    try:
                        found = self._compile(call._replace(batch=real()), bound)
                        self._said.update(dict.fromkeys(found.notes))
                    except Untraceable as error:
                        found = error
                    self._steps[shape] = with_moment(names, traces, clock, found)
        if isinstance(found, Untraceable):
            raise found
        return found, bound

    def play(self, call: StepCall) -> None:
        """One step of one client as the program says it, not compiled; its carry is updated in
        place."""
        homes, [_, *held] = self.bound_to(call.given, call.start, call.carry, call.rate)
        with torch.inference_mode(False):  # what it computes with may be saved for a derivative
            told = tree.rebuild((call.given, call.start), held), tree.rebuild(call.carry, homes)
            ((given, start), carry), batch, rate = tree.clone(
                (told, tree.row(call.batch, 0), call.rate)
            )
            found = self.mine().step(given, start, carry, batch, rate, (), call.clock)
        for home, new in zip(homes, tree.leaves(found), strict=True):
            home.copy_(new)

    def mine(self) -> ClientProgram:
        """The program on a network of this thread's own: another thread may exchange the tensors
        of the shared one meanwhile."""
        if not hasattr(self._own, "program"):
            with self._tracing:
                own = with_own_modules(self.program.task)
            self._own.program = replace(self.program, task=own)
        found: ClientProgram = self._own.program
        return found

    def bound_to(self, given: Given, start: Tensor, carry: Carry, rate: Tensor) -> Bound:
        """The carry and fixed tensors of a step, as its replay wants them."""
        if self.stacked:
            return Bound(tree.leaves(carry), [rate, *tree.leaves((given, start))])
        alone = (_first_client(given), start[0] if start.dim() == 2 else start)
        return Bound([t[0] for t in tree.leaves(carry)], [rate, *tree.leaves(alone)])

    def _moving(self, call: StepCall) -> list[Tensor]:
        """What is another at every step."""
        moving = tree.leaves((call.batch, call.noise))
        return moving if self.stacked else [t[0] for t in moving]

    def _compile(self, call: StepCall, bound: Bound) -> Replay:
        program = self.program

        def step(new: list[Tensor], held: list[Tensor], moved: list[Tensor]) -> list[Tensor]:
            carry, (given, start) = (
                tree.rebuild(call.carry, new),
                tree.rebuild((call.given, call.start), held[1:]),
            )
            batch, noise = tree.rebuild((call.batch, call.noise), moved)
            one: Callable[..., Tree] = program.step
            if self.stacked:
                dims = (given_axes(given), start_axis(start), 0, _axes(batch), None, 0, None)
                one = vmap(program.step, in_dims=dims)
            return tree.leaves(one(given, start, carry, batch, held[0], noise, call.clock))

        rate = None if program.fillers("rate") else 0
        return compile_step(step, bound.carry, bound.fixed, self._moving(call), rate=rate)


def _axes(batch: Batch | None) -> Batch | None:
    """The client axis of every tensor of a batch, in the form ``vmap`` wants."""
    if batch is None:
        return None
    axes: Batch = tree.apply(lambda leaf: 0, batch)
    return axes


def given_axes(given: Given) -> Given:
    return _AXES if given.batches is None else _AXES._replace(batches=0)  # type: ignore[arg-type]


def local_axes(local: WholeData) -> Any:
    return WholeData(_axes(local.train), _axes(local.validation))


def start_axis(start: Tensor) -> int | None:
    """None where everybody starts at one point."""
    return 0 if start.dim() == 2 else None


def _first_client(given: Given) -> Given:
    batches = None if given.batches is None else given.batches[0]
    return given._replace(n=given.n[0], memories=tree.row(given.memories, 0), batches=batches)


def _first(value: Tree, dims: Any) -> Tree:
    """The only client's part of an argument that is mapped along ``dims``."""
    if dims is None or value is None:
        return value
    if isinstance(dims, int):
        return tree.row(value, 0)
    return type(value)(*(_first(v, dim) for v, dim in zip(value, dims, strict=True)))


def rows_of(value: Tree, begin: int, end: int) -> Tree:
    """Clients ``begin..end`` as views."""
    return tree.apply(lambda leaf: leaf[begin:end], value)


def given_rows(given: Given, begin: int, end: int) -> Given:
    batches = None if given.batches is None else given.batches[begin:end]
    memories = rows_of(given.memories, begin, end)
    return given._replace(n=given.n[begin:end], memories=memories, batches=batches)


class KeptSteps:
    """Compiled programs that outlive a run: a process that plays many runs of one program (a
    reproduction, a sweep's worker) compiles it once.

    A compiled step depends on neither seed, rates nor data, so equal programs share theirs. Only
    programs of shoal's own code are shared: whoever edits a network, a loss or a part of their own
    in a notebook gets steps of the code as it is now.
    """

    MOST = 32  # programs that are kept, the last ones used

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ClientProgram, bool], Compiled] = OrderedDict()
        self._lock = Lock()

    def of(self, program: ClientProgram, stacked: bool) -> Compiled:
        """The program's steps so far, or those of an equal program."""
        if not _is_ours(program):
            return Compiled(program, stacked)
        key = (program, stacked)
        with self._lock:
            if key not in self._kept:
                twin = self._kept.get((replace(program, uploads=not program.uploads), stacked))
                self._kept[key] = Compiled(program, stacked, twin)
                while len(self._kept) > self.MOST:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _is_ours(program: ClientProgram) -> bool:
    """Whether a program is made of this package's code alone, so that equal means the same."""
    task = program.task
    build: Any = getattr(task, "build", None)
    if isinstance(build, Blueprint):
        build = build.own or maker(build.name)
    things = [*program.method.parts, program.optimizer, task, build, getattr(task, "rows", None)]
    return all(thing is None or _module_of(thing).startswith("shoal.") for thing in things)


def _module_of(thing: Any) -> str:
    name = getattr(thing, "__module__", None) or type(thing).__module__
    return str(name)


KEPT = KeptSteps()
