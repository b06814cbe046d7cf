"""A whole cohort at once: clients stacked as ``[C, P]``, the local step traced and replayed.

Members are taken in chunks of consecutive clients, small enough that a few ``[C, P]`` buffers stay
in the cache; inside a chunk clients with more steps come first, so that those who are done fall off
the end. Convolutional models run one client at a time. Two threads work on chunks; sums are taken
in client order all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal import tree
from shoal.engines import malloc
from shoal.engines.base import Member, Order, Results, spans
from shoal.engines.batches import batch_rows, step_noise
from shoal.engines.chunk import Chunk, Piece
from shoal.engines.compiled import Compiled, given_rows, rows_of
from shoal.engines.loop import Loop
from shoal.engines.trace import Untraceable
from shoal.local import Given, Local, Program
from shoal.tree import Tree
from shoal.types import Batch, Work

CACHE_BYTES = 4 * 2**20
SMALL_STEP = 1_000_000  # multiply-adds a step below which a second thread does not pay


class Vectorized:
    """See the module. ``threads`` shares chunks between threads of one core each."""

    name = "vectorized"

    def __init__(self, threads: int = 2, cache_bytes: int = CACHE_BYTES) -> None:
        malloc.keep_freed_memory()
        # Steps are fine-grained: two OpenMP threads in one step lose far more than they gain as
        # soon as anybody else wants a core. Parallelism comes from chunks instead.
        torch.set_num_threads(1)
        self._threads = threads
        self._cache_bytes = cache_bytes
        self._compiled: dict[int, Compiled | None] = {}
        self.notes: list[str] = []  # what a user should know, such as a fall-back
        self._pool: ThreadPoolExecutor | None = None

    def train(self, order: Order) -> Iterator[Results]:
        compiled = self._program(order.program)
        if compiled is None:
            yield from Loop().train(order)
            return
        trained = 0
        try:
            for results in self._train_chunks(compiled, order):
                yield results
                trained += len(results.clients)
        except Untraceable as error:
            self._compiled[id(order.program)] = None
            self.notes.append(f"{error}; clients run one by one (engine loop) instead")
            yield from Loop().train(replace(order, members=order.members[trained:]))

    def _train_chunks(self, compiled: Compiled, order: Order) -> Iterator[Results]:
        chunks = self._chunks(order, compiled.stacked)
        if len(chunks) == 1 or self._threads == 1 or _work(order, chunks[0]) < SMALL_STEP:
            for members in chunks:
                yield run_chunk(compiled, order, members)
            return
        pool, waiting = self._workers(), deque[Future[Results]]()
        for members in chunks:
            waiting.append(pool.submit(run_chunk, compiled, order, members))
            if len(waiting) > 2 * self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return Loop().ask(order, question, payload)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _program(self, program: Program) -> Compiled | None:
        """The program's traces; None if it cannot be traced."""
        if id(program) not in self._compiled:
            self._compiled[id(program)] = Compiled(program, program.task.stackable)
        return self._compiled[id(program)]

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            start: Callable[[], None] = lambda: torch.set_num_threads(1)  # noqa: E731
            self._pool = ThreadPoolExecutor(self._threads, initializer=start)
        return self._pool

    def _chunks(self, order: Order, stacked: bool) -> list[tuple[Member, ...]]:
        """Consecutive members; the size depends on the order alone, so bits do too."""
        members, size = order.members, 1
        if stacked:
            theta = order.model.theta
            size = max(1, self._cache_bytes // (theta.numel() * theta.element_size()))
            if _work(order, members) < SMALL_STEP and size >= len(members):
                return [tuple(members)]
        # as many chunks for one thread as for the other, of nearly the same size
        count = min(len(members), 2 * -(-len(members) // (2 * size)))
        cuts = [len(members) * i // count for i in range(count + 1)]
        return [tuple(members[i:j]) for i, j in zip(cuts, cuts[1:], strict=False)]


def _work(order: Order, members: Sequence[Member]) -> int:
    rows = order.batch or len(members[0].train)
    return order.model.theta.numel() * rows * len(members)


def run_chunk(compiled: Compiled, order: Order, members: Sequence[Member]) -> Results:
    """The round of some clients."""
    with torch.inference_mode():
        by_steps = sorted(range(len(members)), key=lambda i: _longest(order, members[i]))
        chunk = Chunk.of(order, [members[i] for i in by_steps])
        finished = _train(compiled, chunk)
        back = {client: k for k, client in enumerate(c for f in finished for c in f.clients)}
        return _in_order(finished, [back[m.client] for m in members])


def _longest(order: Order, member: Member) -> tuple[int, int]:
    cap = member.steps if member.steps is not None else 2**40
    return (-cap, -len(member.train))


class _Active:
    """Clients of a chunk that have not stopped, and what they did so far."""

    def __init__(self, compiled: Compiled, chunk: Chunk, rate: Tensor) -> None:
        self.chunk, self.largest = chunk, len(chunk.members)
        self.given: Given = chunk.given()
        self.local: Local = chunk.local()
        clock = chunk.order.clock(0)
        self.start, self.carry = compiled.start(self.given, rate, self.local, clock)
        clients = len(chunk.members)
        self.steps, self.samples = [0] * clients, [0] * clients
        self.rate_total = [0.0] * clients

    def select(self, keep: list[int]) -> None:
        """Go on with these clients only."""
        index = torch.tensor(keep)
        pick: Callable[[Tree], Tree] = lambda t: tree.apply(lambda x: x.index_select(0, index), t)  # noqa: E731
        chunk = self.chunk
        self.chunk = Chunk.of(chunk.order, [chunk.members[i] for i in keep])
        self.given = self.given._replace(n=pick(self.given.n), memories=pick(self.given.memories))
        self.local = Local(*(None if b is None else pick(b) for b in self.local))
        self.start = pick(self.start) if self.start.dim() == 2 else self.start
        self.carry = pick(self.carry)
        self.steps = [self.steps[i] for i in keep]
        self.samples = [self.samples[i] for i in keep]
        self.rate_total = [self.rate_total[i] for i in keep]


def _train(compiled: Compiled, chunk: Chunk) -> list[Results]:
    order, program = chunk.order, compiled.program
    like = order.model.theta
    rates = [torch.tensor(r, dtype=like.dtype, device=like.device) for r in order.rates]
    active, finished = _Active(compiled, chunk, rates[0]), []
    watches = bool(program.fillers("after_epoch") or program.fillers("stop"))
    for epoch, rate in enumerate(rates):
        _epoch(compiled, active, epoch, rate)
        stop = [False] * len(active.chunk.members)
        if watches:
            clock = order.clock(epoch)
            active.carry, flags = compiled.epoch_end(
                active.given, active.start, active.carry, rate, active.local, clock
            )
            stop = flags.tolist()
        last = epoch + 1 == len(rates)
        over = [
            i
            for i, m in enumerate(active.chunk.members)
            if last or stop[i] or (m.steps is not None and active.steps[i] >= m.steps)
        ]
        if over:
            stay = [i for i in range(len(stop)) if i not in set(over)]
            finished.append(_finish(compiled, active, over, epoch, rate, alone=not stay))
            if not stay:
                break
            active.select(stay)
    return finished


def _epoch(compiled: Compiled, active: _Active, epoch: int, rate: Tensor) -> None:
    """All steps of one epoch for the clients still active."""
    chunk, order = active.chunk, active.chunk.order
    stepper = _Stepper(compiled, active, epoch, rate)
    steps = chunk.steps(active.steps)
    sizes = _sizes(active.largest) if compiled.stacked else [1]
    regular = chunk.regular(steps) if compiled.stacked or len(chunk.members) == 1 else 0
    stepper.regular_steps(regular)
    for step in range(regular, max(steps)):
        for piece in chunk.pieces(step, steps):
            for begin, end in spans(piece.end - piece.begin, sizes):
                stepper.step(step, piece, piece.begin + begin, piece.begin + end)
    for i, taken in enumerate(steps):
        rows = batch_rows(order, chunk.counts[i])
        active.samples[i] += min(chunk.counts[i], taken * rows)
        active.steps[i] += taken
        active.rate_total[i] += taken * order.rates[epoch]


def _sizes(clients: int) -> list[int]:
    """Few shapes, so that little is traced: the whole chunk, or powers of four."""
    return sorted({clients, *(4**k for k in range(clients.bit_length()) if 4**k < clients)})


class _Stepper:
    """Replays of one epoch, bound to the active clients' tensors as they are first needed."""

    def __init__(self, compiled: Compiled, active: _Active, epoch: int, rate: Tensor) -> None:
        self.compiled, self.active, self.epoch, self.rate = compiled, active, epoch, rate
        self.value = active.chunk.order.rates[epoch]
        self.shuffled = active.chunk.epoch(epoch)
        self.bound: dict[tuple[int, int, int], Callable[..., object]] = {}

    def regular_steps(self, steps: int) -> None:
        """Steps that all clients take with full batches: no look-ups inside the loop."""
        clients, run, value = len(self.active.chunk.members), None, self.value
        stacked, noisy = self.compiled.stacked, self.compiled.program.noisy
        for step, moving in enumerate(self.shuffled.blocks(steps)):
            noise = self._noise(step, 0, clients) if noisy else ()
            if run is None:
                run = self._bind(0, clients, Batch(*moving), noise)
            if noisy:
                moving += tree.leaves(noise)
            run(moving if stacked else [t[0] for t in moving], value)

    def _noise(self, step: int, begin: int, end: int) -> tuple[Tree, ...]:
        clients = [m.client for m in self.active.chunk.members[begin:end]]
        return step_noise(self.active.chunk.order, clients, self.epoch, step)

    def step(self, step: int, piece: Piece, begin: int, end: int) -> None:
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
        active = self.active
        given, start, carry = active.given, active.start, active.carry
        if end - begin < len(active.chunk.members):
            given, carry = given_rows(given, begin, end), rows_of(carry, begin, end)
            start = start[begin:end] if start.dim() == 2 else start
        clock = active.chunk.order.clock(self.epoch)
        replay, flat, fixed = self.compiled.step(
            given, start, carry, batch, self.rate, noise, clock
        )
        return replay.bind(flat, fixed)


def _finish(
    compiled: Compiled, active: _Active, over: list[int], epoch: int, rate: Tensor, alone: bool
) -> Results:
    """What the clients that are done send and keep."""
    done = active
    if not alone:
        done = copy(active)
        done.select(over)
    theta, program = active.carry.x, compiled.program
    number: Callable[[Sequence[float]], Tensor] = lambda v: torch.tensor(v, dtype=theta.dtype)  # noqa: E731
    epochs = [epoch + 1] * len(over)
    total = done.carry.rate_sum if program.fillers("rate") else number(done.rate_total)
    work = Work(number(done.steps), number(done.samples), number(epochs), total)
    clock = active.chunk.order.clock(epoch)
    ended = compiled.end(done.given, done.start, done.carry, work, rate, done.local, clock)
    members = done.chunk.members
    return Results(
        tuple(m.client for m in members),
        tuple(m.train.count for m in members),
        ended.delta,
        ended.stats,
        ended.payloads,
        ended.memories,
        tuple(done.steps),
        tuple(done.samples),
        tuple(epochs),
    )


def _in_order(finished: list[Results], rows: list[int]) -> Results:
    """One result with the clients in the given order."""
    if len(finished) == 1 and rows == list(range(len(rows))):
        return finished[0]
    index = torch.tensor(rows)
    columns: list[Any] = []
    for column in zip(*finished, strict=True):
        if isinstance(column[0], tuple) and not tree.leaves(column[0]):
            columns.append(column[0])
        elif isinstance(column[0], tuple) and not isinstance(tree.leaves(column[0])[0], Tensor):
            flat = [value for group in column for value in group]
            columns.append(tuple(flat[r] for r in rows))
        else:
            pairs = zip(*(tree.leaves(c) for c in column), strict=True)
            joined = [torch.cat(leaves).index_select(0, index) for leaves in pairs]
            columns.append(tree.rebuild(column[0], joined))
    return Results(*columns)
