"""A whole cohort at once: clients stacked as ``[C, P]``, the local step traced and replayed.

Members are taken in chunks of consecutive clients, small enough that a few ``[C, P]`` buffers stay
in the cache; inside a chunk clients with more steps come first, so that those who are done fall off
the end. Convolutional models run one client at a time. Two threads work on chunks; sums are taken
in client order all the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from shoal import tree
from shoal.cores import cores
from shoal.engines.api import Order, Results
from shoal.engines.client_round import Program
from shoal.engines.compiler.compile import Untraceable
from shoal.engines.loop import Loop
from shoal.engines.stacked.compiled import Compiled, compiled_for
from shoal.engines.stacked.embeddings import Compact, compact_of
from shoal.engines.stacked.factored import clients_at_once
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plan import CACHE_BYTES, SMALL_STEP, chunks_of, work_of
from shoal.engines.stacked.questions import Asker
from shoal.engines.stacked.run import run_chunk
from shoal.tree import Tree
from shoal.types import ClientData, Pool


class Stacked:
    """See the module. ``threads`` shares chunks between threads of one core each (two, or one
    where there is but one core to use)."""

    name = "stacked"

    def __init__(self, threads: int | None = None, cache_bytes: int = CACHE_BYTES) -> None:
        keep_freed_memory()
        # Steps are fine-grained: two OpenMP threads in one step lose far more than they gain as
        # soon as anybody else wants a core. Parallelism comes from chunks instead.
        torch.set_num_threads(1)
        self._threads = threads or min(2, cores())
        self._cache_bytes = cache_bytes
        self._compiled: dict[int, tuple[Program, Compiled | None]] = {}
        self._askers: dict[int, tuple[Program, Asker | None]] = {}
        self._compact: dict[int, tuple[Program, Compact | None]] = {}
        self.notes: list[str] = []  # what a user should know, such as a fall-back
        self._pool: ThreadPoolExecutor | None = None

    def train(self, order: Order) -> Iterator[Results]:
        compact = self._compact_of(order.program)
        return compact.train(order, self._train) if compact else self._train([order])

    def _train(self, orders: Sequence[Order]) -> Iterator[Results]:
        """The results of some orders of one program, one order after the other."""
        program = orders[0].program
        compiled, trained = self._program(program), [0] * len(orders)
        if compiled is not None:
            try:
                for number, results in self._train_chunks(compiled, orders):
                    yield results
                    trained[number] += len(results.clients)
                return
            except Untraceable as error:
                self._compiled[id(program)] = (program, None)
                self.notes.append(f"{error}; clients run one by one (engine loop) instead")
        for number, order in enumerate(orders):
            yield from Loop().train(replace(order, members=order.members[trained[number] :]))

    def _train_chunks(
        self, compiled: Compiled, orders: Sequence[Order]
    ) -> Iterator[tuple[int, Results]]:
        """Results with the number of their order."""
        chunks: list[Chunk] = []
        numbers: list[int] = []
        for number, order in enumerate(orders):
            most = clients_at_once(compiled, order)
            own = chunks_of(in_one_pool(order), compiled.stacked, self._cache_bytes, most)
            chunks += own
            numbers += [number] * len(own)
        alone = len(chunks) == 1 or self._threads == 1 or work_of(chunks[0]) < SMALL_STEP
        found = self._one_by_one(compiled, chunks) if alone else self._shared(compiled, chunks)
        return zip(numbers, found, strict=True)

    def _one_by_one(self, compiled: Compiled, chunks: Sequence[Chunk]) -> Iterator[Results]:
        return (run_chunk(compiled, chunk) for chunk in chunks)

    def _shared(self, compiled: Compiled, chunks: Sequence[Chunk]) -> Iterator[Results]:
        """Results in the order of the chunks, computed by several threads."""
        pool, waiting = self._workers(), deque[Future[Results]]()
        for chunk in chunks:
            waiting.append(pool.submit(run_chunk, compiled, chunk))
            if len(waiting) > 2 * self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        program = order.program
        if id(program) not in self._askers:
            self._askers[id(program)] = (program, Asker(program))
        asker = self._askers[id(program)][1]
        if asker is None:
            return Loop().ask(order, question, payload)
        walk = asker.walk(order, question, payload)
        if walk is not None:
            return [
                tree.row(results.payloads[0], row)
                for results in self.train(walk)
                for row in range(len(results.clients))
            ]
        try:
            return asker.ask(order, question, payload)
        except Untraceable:  # the loop's own steps do as well, and no training depends on it
            self._askers[id(program)] = (program, None)
            return Loop().ask(order, question, payload)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _program(self, program: Program) -> Compiled | None:
        """The program's traces; None if it cannot be traced."""
        if id(program) not in self._compiled:
            self._compiled[id(program)] = (program, compiled_for(program))
        return self._compiled[id(program)][1]

    def _compact_of(self, program: Program) -> Compact | None:
        """How to train a large embedding by the row; None where all of it must be."""
        if id(program) not in self._compact:
            made, why = compact_of(program)
            self._compact[id(program)] = (program, made)
            self.notes += [why] if why else []
        return self._compact[id(program)][1]

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            start: Callable[[], None] = lambda: torch.set_num_threads(1)  # noqa: E731
            self._pool = ThreadPoolExecutor(self._threads, initializer=start)
        return self._pool


def in_one_pool(order: Order) -> Order:
    """The same order with all training rows in one pool, and all validation rows in one.

    Nothing is copied where that is so already, as in most worlds.
    """
    members = order.members
    train = _pooled([m.train for m in members])
    held = [m.validation for m in members if m.validation is not None]
    validation = _pooled(held)
    if train is None and validation is None:
        return order
    trains = iter(train or [m.train for m in members])
    helds = iter(validation or held)
    moved = (
        replace(m, train=next(trains), validation=None if m.validation is None else next(helds))
        for m in members
    )
    return replace(order, members=tuple(moved))


def _pooled(data: Sequence[ClientData]) -> list[ClientData] | None:
    """Rows copied into one pool; None if they are in one."""
    if len({id(d.pool.x) for d in data}) < 2:
        return None
    x = torch.cat([d.pool.x.index_select(0, d.rows) for d in data])
    pool = Pool(x, torch.cat([d.labels for d in data]))
    out, begin = [], 0
    for d in data:
        rows = torch.arange(begin, begin + len(d), device=d.rows.device)
        out.append(replace(d, pool=pool, rows=rows))
        begin += len(d)
    return out


# Parameter numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(threshold: int = 1 << 30) -> bool:
    """Ask the allocator to reuse freed blocks below ``threshold`` bytes; true if it agreed.

    A training step makes the same large temporaries over and over. By default the C library gives
    each one back to the system, and the next one pays for page faults again. Only Linux with
    glibc is affected; elsewhere this does nothing and returns false.
    """
    if not sys.platform.startswith("linux"):
        return False
    # Both fields are C ints, whatever the size of a pointer.
    limit = min(threshold, 2**31 - 1)
    try:
        mallopt = ctypes.CDLL(None).mallopt
        kept = mallopt(_M_MMAP_THRESHOLD, limit)
        return bool(mallopt(_M_TRIM_THRESHOLD, limit) and kept)
    except (OSError, AttributeError):
        return False
