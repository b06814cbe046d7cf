"""The path GENERAL: epochs of steps, clients that still train, results of those who are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import Batch, Work
from shoal.engines.api import Lender, Results, known, spans
from shoal.engines.client_round import Carry, ClientProgram, Given, WholeData
from shoal.engines.compiler.compile import Replay
from shoal.engines.compiler.graph import Steps
from shoal.engines.loop import batch_rows, rows_taken
from shoal.engines.stacked.compiled import Bound, Compiled, StepCall, given_rows, rows_of
from shoal.engines.stacked.layout import Chunk, Piece
from shoal.engines.stacked.plan import (
    SMALL_STEP,
    filled,
    plays,
    rows_for,
    runs_of,
    stack_sizes,
    step_work,
)
from shoal.methods.view import Clock

# ---- active clients ------------------------------------------------------------------------------
# The clients of a chunk that still train, and what those who are done send and keep.


class FinishedClients(NamedTuple):
    """Results of some clients, and where each was in the chunk's running order."""

    places: list[int]
    results: Results


def _sizes_for(compiled: Compiled, chunk: Chunk) -> tuple[int, ...]:
    """Rows that the chunk's stacks may have, the most last; () where they are exactly its clients.

    A large step is worth more than a compilation, and equal clients seldom need another one.
    """
    spare = compiled.stacked and chunk.order.pad > 0 and not compiled.program.noisy
    # a batch with merged rows is of another kind than the others
    spare = spare and chunk.order.last_batch != "merge"
    work = step_work(chunk.order) * len(chunk.members)
    if not spare or chunk.even or work >= SMALL_STEP:
        return ()
    return stack_sizes(len(chunk.members), spare=True)


class Active:
    """Clients of a chunk that have not stopped, and what they did so far.

    Tensors may have spare rows behind those of the clients.
    """

    def __init__(self, compiled: Compiled, chunk: Chunk, rate: Tensor, lender: Lender) -> None:
        self.chunk, self.largest = chunk, len(chunk.members)
        self.sizes = _sizes_for(compiled, chunk)
        self.where = list(range(self.largest))  # places in the running order as it began
        self.given: Given = chunk.given()
        self.local: WholeData = chunk.local()
        if rows_for(self.largest, self.sizes) > self.largest:
            rows = rows_for(self.largest, self.sizes)
            self._pick_given(filled(self.where, rows, self.given.n.device))
        clock = chunk.order.clock(0)
        # what is only added up, and is nothing else by then, may be written over afterwards
        lent = lender if chunk.order.summed and compiled.plain_end else None
        self.start, self.carry = compiled.start(self.given, rate, self.local, clock, lent)
        self.steps, self.samples = [0] * self.largest, [0] * self.largest
        self.rate_total = [0.0] * self.largest

    @property
    def rows(self) -> int:
        """Of the tensors."""
        return self.carry.x.shape[0]

    def count(self, steps: list[int], rate: float) -> None:
        """Write down an epoch's steps at a rate."""
        chunk = self.chunk
        if chunk.even:  # everybody took the same steps, so far, too
            taken = rows_taken(chunk.order, chunk.counts[0], steps[0])
            self.samples = [self.samples[0] + taken] * len(steps)
            self.steps = [self.steps[0] + steps[0]] * len(steps)
            self.rate_total = [self.rate_total[0] + steps[0] * rate] * len(steps)
            return
        seen = map(partial(rows_taken, chunk.order), chunk.counts, steps)
        self.samples = list(map(add, self.samples, seen))
        self.steps = list(map(add, self.steps, steps))
        self.rate_total = [
            total + taken * rate for total, taken in zip(self.rate_total, steps, strict=True)
        ]

    def select(self, keep: list[int]) -> None:
        """Go on with these clients only."""
        index = filled(keep, rows_for(len(keep), self.sizes), self.carry.x.device)
        self.chunk = self.chunk.some(keep)
        self._pick_given(index)
        self.start = _picked(self.start, index) if self.start.dim() == 2 else self.start
        self.carry = _picked(self.carry, index)
        self.where = [self.where[i] for i in keep]
        self.steps = [self.steps[i] for i in keep]
        self.samples = [self.samples[i] for i in keep]
        self.rate_total = [self.rate_total[i] for i in keep]

    def _pick_given(self, index: Tensor) -> None:
        """Rows of what is held fixed over the round."""
        given = self.given
        self.given = given._replace(
            n=_picked(given.n, index),
            memories=_picked(given.memories, index),
            batches=_picked(given.batches, index),
        )
        self.local = WholeData(*(None if b is None else _picked(b, index) for b in self.local))


def _picked(value: Tree, index: Tensor) -> Tree:
    return tree.apply(lambda leaf: leaf.index_select(0, index), value)


def finish(
    compiled: Compiled, active: Active, over: list[int], epoch: int, rate: Tensor
) -> FinishedClients:
    """What the clients that are done send and keep."""
    done = active
    if len(over) < len(active.where):
        done = copy(active)
        done.select(over)
    clock = active.chunk.order.clock(epoch)
    work = _work(compiled, done, epoch)
    ended = compiled.end(done.given, done.start, done.carry, work, rate, done.local, clock)
    members = done.chunk.members
    if done.rows > len(members):
        ended = rows_of(ended, 0, len(members))
    norms = torch.linalg.vector_norm(ended.delta, dim=1).tolist()
    results = Results(
        tuple([m.client for m in members]),
        tuple([m.train.count for m in members]),
        ended.delta,
        ended.stats,
        ended.payloads,
        ended.memories,
        tuple(done.steps),
        tuple(done.samples),
        (epoch + 1,) * len(members),
        tuple(norms),
    )
    return FinishedClients(done.where, results)


def _work(compiled: Compiled, done: Active, epoch: int) -> Work | None:
    """The measured work, where something asks for it."""
    if compiled.plain_end:
        return None
    like, spare = done.carry.x, done.rows - len(done.steps)
    number: Callable[[Sequence[float]], Tensor]
    number = lambda v: known((*v, *[v[-1]] * spare), like.dtype, like.device)  # noqa: E731
    rated = bool(compiled.program.fillers("rate"))
    total = done.carry.rate_sum if rated else number(done.rate_total)
    epochs = number([epoch + 1] * len(done.steps))
    return Work(number(done.steps), number(done.samples), epochs, total)


def as_they_came(chunk: Chunk, finished: list[FinishedClients]) -> Results:
    """One result, the clients in the order in which the chunk was given them.

    A client has three numbers: as it came, as it ran (``chunk.places`` leads from here to the
    first), and as it finished.
    """
    if len(finished) == 1 and chunk.even:
        return finished[0].results  # they ran as they came
    ran_as = [0] * len(chunk.members)  # by the number as it came
    for ran, came in enumerate(chunk.places):
        ran_as[came] = ran
    finished_as = {ran: k for k, ran in enumerate(w for d in finished for w in d.places)}
    rows = [finished_as[ran] for ran in ran_as]
    return joined([d.results for d in finished], rows)


def joined(finished: list[Results], rows: list[int]) -> Results:
    """One result with the clients in the given order."""
    size = sum(len(f.clients) for f in finished)
    if len(finished) == 1 and rows == list(range(size)):
        return finished[0]
    index = torch.tensor(rows, device=finished[0].stats.device)
    columns: list[Any] = []
    for column in zip(*finished, strict=True):
        plain = column[0] is None or isinstance(column[0], bool)
        if plain or (isinstance(column[0], tuple) and not tree.leaves(column[0])):
            columns.append(column[0])
        elif isinstance(column[0], tuple) and not isinstance(tree.leaves(column[0])[0], Tensor):
            flat = [value for group in column for value in group]
            columns.append(tuple(flat[r] for r in rows))
        else:
            pairs = zip(*(tree.leaves(c) for c in column), strict=True)
            joined = [torch.cat(leaves).index_select(0, index) for leaves in pairs]
            columns.append(tree.rebuild(column[0], joined))
    return Results(*columns)


# ---- run -----------------------------------------------------------------------------------------
# The round of a chunk of clients: epochs of replayed steps.


def run_general(compiled: Compiled, chunk: Chunk, lender: Lender) -> Results:
    """The round of some clients, whatever their method does."""
    return as_they_came(chunk, _train(compiled, chunk, lender))


def _train(compiled: Compiled, chunk: Chunk, lender: Lender) -> list[FinishedClients]:
    order, program = chunk.order, compiled.program
    like = order.model.theta
    rates = [known(r, like.dtype, like.device) for r in order.rates]
    active, finished = Active(compiled, chunk, rates[0], lender), []
    watches = bool(program.fillers("after_epoch") or program.fillers("stop"))
    for epoch, rate in enumerate(rates):
        _epoch(compiled, active, epoch, rate)
        stop = [False] * len(active.where)
        if watches:
            clock = order.clock(epoch)
            active.carry, flags = compiled.epoch_end(
                active.given, active.start, active.carry, rate, active.local, clock
            )
            stop = flags.tolist()[: len(stop)]
        over = list(range(len(stop)))
        if epoch + 1 < len(rates):
            over = [i for i in over if stop[i] or _capped(active, i)]
        if over:
            finished.append(finish(compiled, active, over, epoch, rate))
            stay = [i for i in range(len(stop)) if i not in set(over)]
            if not stay:
                break
            active.select(stay)
    return finished


def _capped(active: Active, i: int) -> bool:
    cap = active.chunk.members[i].steps
    return cap is not None and active.steps[i] >= cap


def _epoch(compiled: Compiled, active: Active, epoch: int, rate: Tensor) -> None:
    """All steps of one epoch for the clients still active."""
    chunk, order = active.chunk, active.chunk.order
    stepper = _Stepper(compiled, active, epoch, rate)
    steps = chunk.steps_each(active.steps)
    if active.sizes:
        _epoch_with_spare_rows(stepper, steps)
        active.count(steps, order.rates[epoch])
        return
    sizes = stack_sizes(active.largest, spare=False) if compiled.stacked else (1,)
    regular = chunk.regular(steps) if compiled.stacked or len(chunk.members) == 1 else 0
    stepper.take_regular(regular)
    for step, count, pieces in chunk.stretches(regular, steps):
        for piece in pieces:
            for begin, end in spans(piece.end - piece.begin, sizes):
                stepper.take(step, count, piece, piece.begin + begin, piece.begin + end)
    active.count(steps, order.rates[epoch])


def _epoch_with_spare_rows(stepper: _Stepper, steps: list[int]) -> None:
    """Every run of steps in one call. Whoever is done is stepped on with the others, as far as
    rows are not left out, and then put back to where it was."""
    active, program = stepper.active, stepper.compiled.program
    harmless = program.plain_steps and not active.carry.stats.numel()
    every = stepper.shuffled.every_step(steps, active.rows)
    leaves, kept = _changed_by_steps(program, active.carry), list[tuple[Tensor, list[Tensor]]]()
    for run in runs_of(steps, active.sizes, harmless):
        stepper.take_run(every.cut(run.first, run.end, run.rows), run.rows)
        if run.done:
            index = torch.tensor(run.done, device=active.carry.x.device)
            kept.append((index, [leaf.index_select(0, index) for leaf in leaves]))
    for index, before in kept:
        for leaf, rows in zip(leaves, before, strict=True):
            leaf.index_copy_(0, index, rows)


def _changed_by_steps(program: ClientProgram, carry: Carry) -> list[Tensor]:
    """What steps change; the rest may be shared with others (see ``Compiled.start``)."""
    scratches = tuple(
        own
        for part, own in zip(program.method.parts, carry.scratches, strict=True)
        if part.fills("after_step")
    )
    rated = carry.rate_sum if program.fillers("rate") else ()
    return tree.leaves((carry.x, carry.stats, scratches, carry.optimizer, rated))


class _Stepper:
    """Takes the steps of one epoch: all steps of some clients in one call where that can be, else
    one by one. Compiled steps are looked up, and bound to the clients' tensors, when first needed.
    """

    def __init__(self, compiled: Compiled, active: Active, epoch: int, rate: Tensor) -> None:
        self.compiled, self.active, self.epoch, self.rate = compiled, active, epoch, rate
        self.value = active.chunk.order.rates[epoch]
        self.shuffled = active.chunk.epoch(epoch)
        self.bound: dict[tuple[int, int, int], Callable[..., object]] = {}
        self.found: dict[int, tuple[Replay, Bound]] = {}

    def _plays(self, piece: Piece) -> bool:
        """Whether to do the step as a program says it, without compiling it for its length."""
        order = self.active.chunk.order
        full = batch_rows(order, self.shuffled.counts[piece.begin])
        odd = bool(order.pad) and not piece.weighted and piece.length != full
        return odd and not self.compiled.stacked and plays(order)

    def take_regular(self, count: int) -> None:
        """Steps that all clients take with full batches: no look-ups inside the loop."""
        if not count:
            return
        clients, steps = len(self.active.where), self.shuffled.steps(count)
        if self.compiled.program.noisy:
            self._take_noisy(steps, clients)
        else:
            self._take_all(steps, 0, clients)

    def _take_noisy(self, steps: Steps, clients: int) -> None:
        """Noise is drawn for every step."""
        run = None
        for step, moving in enumerate(steps.batches()):
            noise = self._noise(step, 0, clients)
            if run is None:
                run = self._bind(0, clients, Batch.of(*moving), noise)
            moving += tree.leaves(noise)
            run(moving if self.compiled.stacked else [t[0] for t in moving], self.value)

    def _noise(self, step: int, begin: int, end: int) -> tuple[Tree, ...]:
        return self.active.chunk.noise(self.epoch, step, begin, end)

    def take(self, step: int, count: int, piece: Piece, begin: int, end: int) -> None:
        """``count`` steps of clients ``begin..end`` from this one on."""
        if self.compiled.program.noisy or (count == 1 and (piece.weighted or self._plays(piece))):
            for number in range(step, step + count):
                self._take_one(number, piece, begin, end)
            return
        steps = self.shuffled.stretch(piece, step, count, begin, end)
        self._take_all(steps, begin, end)

    def take_run(self, steps: Steps, rows: int) -> None:
        """Steps of the first ``rows`` rows; several runs of an epoch may have equally many."""
        if rows not in self.found:
            self.found[rows] = self._replay(0, rows, Batch.of(*steps.like()), (), steps.first)
        replay, bound = self.found[rows]
        replay.all_steps(*bound, steps, self.value)

    def _take_all(self, steps: Steps, begin: int, end: int) -> None:
        """Every step of clients ``begin..end`` in one call."""
        replay, bound = self._replay(begin, end, Batch.of(*steps.like()), (), steps.first)
        replay.all_steps(*bound, steps if self.compiled.stacked else steps.alone(), self.value)

    def _take_one(self, step: int, piece: Piece, begin: int, end: int) -> None:
        """One step of clients ``begin..end``."""
        batch = self.shuffled.batch(piece, step, begin, end)
        noisy = self.compiled.program.noisy
        noise: tuple[Tree, ...] = self._noise(step, begin, end) if noisy else ()
        if self._plays(piece):
            clients = self._clients(begin, end)
            self.compiled.play(StepCall(*clients, batch, self.rate, self._clock))
            return
        key = (begin, end, piece.length)
        if key not in self.bound:
            self.bound[key] = self._bind(begin, end, batch, noise)
        moving = tree.leaves((batch, noise))
        if not self.compiled.stacked:
            moving = [t[0] for t in moving]
        self.bound[key](moving, self.value)

    def _bind(
        self, begin: int, end: int, batch: Batch, noise: tuple[Tree, ...]
    ) -> Callable[..., object]:
        replay, bound = self._replay(begin, end, batch, noise, lambda: batch)
        return replay.bind(*bound)

    def _replay(
        self,
        begin: int,
        end: int,
        batch: Batch,
        noise: tuple[Tree, ...],
        real: Callable[[], Batch],
    ) -> tuple[Replay, Bound]:
        """The step of some clients, and the tensors to run it on."""
        clients = self._clients(begin, end)
        call = StepCall(*clients, batch, self.rate, self._clock, noise)
        return self.compiled.step(call, real)

    def _clients(self, begin: int, end: int) -> tuple[Given, Tensor, Carry]:
        """What some clients hold, where they began, and what their steps change."""
        active = self.active
        given, start, carry = active.given, active.start, active.carry
        if end - begin < active.rows:
            given, carry = given_rows(given, begin, end), rows_of(carry, begin, end)
            start = start[begin:end] if start.dim() == 2 else start
        return given, start, carry

    @property
    def _clock(self) -> Clock:
        return self.active.chunk.order.clock(self.epoch)
