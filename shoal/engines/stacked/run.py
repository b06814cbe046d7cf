"""The round of a chunk of clients: epochs of replayed steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Results, spans
from shoal.engines.client_round import Carry, Program
from shoal.engines.compiler.compile import Replay
from shoal.engines.compiler.steps import Steps
from shoal.engines.numbers import known
from shoal.engines.stacked.active_clients import Active, Done, finish, in_order
from shoal.engines.stacked.compiled import Compiled, given_rows, rows_of
from shoal.engines.stacked.epoch import Piece
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.sizes import runs_of, stack_sizes
from shoal.tree import Tree
from shoal.types import Batch


def run_general(compiled: Compiled, chunk: Chunk) -> Results:
    """The round of some clients, whatever their method does."""
    return in_order(chunk, _train(compiled, chunk))


def _train(compiled: Compiled, chunk: Chunk) -> list[Done]:
    order, program = chunk.order, compiled.program
    like = order.model.theta
    rates = [known(r, like.dtype, like.device) for r in order.rates]
    active, finished = Active(compiled, chunk, rates[0]), []
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
    steps = chunk.steps(active.steps)
    if active.sizes:
        _epoch_with_spare_rows(stepper, steps)
        active.count(steps, order.rates[epoch])
        return
    sizes = stack_sizes(active.largest, spare=False) if compiled.stacked else (1,)
    regular = chunk.regular(steps) if compiled.stacked or len(chunk.members) == 1 else 0
    stepper.regular_steps(regular)
    for step, count, pieces in chunk.stretches(regular, steps):
        for piece in pieces:
            for begin, end in spans(piece.end - piece.begin, sizes):
                stepper.steps(step, count, piece, piece.begin + begin, piece.begin + end)
    active.count(steps, order.rates[epoch])


def _epoch_with_spare_rows(stepper: _Stepper, steps: list[int]) -> None:
    """Every run of steps in one call. Whoever is done is stepped on with the others, as far as
    rows are not left out, and then put back to where it was."""
    active, program = stepper.active, stepper.compiled.program
    harmless = program.plain_steps and not active.carry.stats.numel()
    every = stepper.shuffled.every_step(steps, active.rows)
    leaves, kept = _stepped(program, active.carry), list[tuple[Tensor, list[Tensor]]]()
    for run in runs_of(steps, active.sizes, harmless):
        stepper.run(every.cut(run.first, run.end, run.rows), run.rows)
        if run.done:
            index = torch.tensor(run.done, device=active.carry.x.device)
            kept.append((index, [leaf.index_select(0, index) for leaf in leaves]))
    for index, before in kept:
        for leaf, rows in zip(leaves, before, strict=True):
            leaf.index_copy_(0, index, rows)


def _stepped(program: Program, carry: Carry) -> list[Tensor]:
    """What steps change; the rest may be shared with others (see ``Compiled.start``)."""
    scratches = tuple(
        own
        for part, own in zip(program.method.parts, carry.scratches, strict=True)
        if part.fills("after_step")
    )
    rated = carry.rate_sum if program.fillers("rate") else ()
    return tree.leaves((carry.x, carry.stats, scratches, carry.optimizer, rated))


class _Stepper:
    """Replays of one epoch, bound to the active clients' tensors as they are first needed."""

    def __init__(self, compiled: Compiled, active: Active, epoch: int, rate: Tensor) -> None:
        self.compiled, self.active, self.epoch, self.rate = compiled, active, epoch, rate
        self.value = active.chunk.order.rates[epoch]
        self.shuffled = active.chunk.epoch(epoch)
        self.bound: dict[tuple[int, int, int], Callable[..., object]] = {}
        self.found: dict[int, tuple[Replay, list[Tensor], list[Tensor]]] = {}

    def regular_steps(self, count: int) -> None:
        """Steps that all clients take with full batches: no look-ups inside the loop."""
        if not count:
            return
        clients, steps = len(self.active.where), self.shuffled.steps(count)
        if self.compiled.program.noisy:
            self._noisy_steps(steps, clients)
        else:
            self._all(steps, 0, clients)

    def _noisy_steps(self, steps: Steps, clients: int) -> None:
        """Noise is drawn for every step."""
        run = None
        for step, moving in enumerate(steps.batches()):
            noise = self._noise(step, 0, clients)
            if run is None:
                run = self._bind(0, clients, Batch(*moving), noise)
            moving += tree.leaves(noise)
            run(moving if self.compiled.stacked else [t[0] for t in moving], self.value)

    def _noise(self, step: int, begin: int, end: int) -> tuple[Tree, ...]:
        return self.active.chunk.noise(self.epoch, step, begin, end)

    def steps(self, step: int, count: int, piece: Piece, begin: int, end: int) -> None:
        """``count`` steps of clients ``begin..end`` from this one on."""
        if count == 1 or self.compiled.program.noisy:
            for number in range(step, step + count):
                self._step(number, piece, begin, end)
            return
        steps = self.shuffled.stretch(piece, step, count, begin, end)
        self._all(steps, begin, end)

    def run(self, steps: Steps, rows: int) -> None:
        """Steps of the first ``rows`` rows; several runs of an epoch may have equally many."""
        if rows not in self.found:
            real: Callable[[], Batch] = lambda: Batch(*next(steps.batches()))  # noqa: E731
            self.found[rows] = self._replay(0, rows, Batch(*steps.like()), (), real)
        replay, carry, fixed = self.found[rows]
        replay.all_steps(carry, fixed, steps, self.value)

    def _all(self, steps: Steps, begin: int, end: int) -> None:
        """Every step of clients ``begin..end`` in one call."""
        real: Callable[[], Batch] = lambda: Batch(*next(steps.batches()))  # noqa: E731
        replay, carry, fixed = self._replay(begin, end, Batch(*steps.like()), (), real)
        stacked = self.compiled.stacked
        replay.all_steps(carry, fixed, steps if stacked else steps.alone(), self.value)

    def _step(self, step: int, piece: Piece, begin: int, end: int) -> None:
        """One step of clients ``begin..end``."""
        batch = self.shuffled.batch(piece, step, begin, end)
        noisy = self.compiled.program.noisy
        noise: tuple[Tree, ...] = self._noise(step, begin, end) if noisy else ()
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
        replay, carry, fixed = self._replay(begin, end, batch, noise, lambda: batch)
        return replay.bind(carry, fixed)

    def _replay(
        self,
        begin: int,
        end: int,
        batch: Batch,
        noise: tuple[Tree, ...],
        real: Callable[[], Batch],
    ) -> tuple[Replay, list[Tensor], list[Tensor]]:
        """The step of some clients, and the tensors to run it on."""
        active = self.active
        given, start, carry = active.given, active.start, active.carry
        if end - begin < active.rows:
            given, carry = given_rows(given, begin, end), rows_of(carry, begin, end)
            start = start[begin:end] if start.dim() == 2 else start
        clock = active.chunk.order.clock(self.epoch)
        return self.compiled.step(given, start, carry, batch, self.rate, noise, clock, real)
