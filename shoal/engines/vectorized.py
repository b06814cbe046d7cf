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
from dataclasses import replace

import torch

from shoal import tree
from shoal.cores import cores
from shoal.engines import malloc
from shoal.engines.asking import Asker
from shoal.engines.base import Order, Results
from shoal.engines.chunk import Chunk
from shoal.engines.chunking import CACHE_BYTES, SMALL_STEP, chunks_of, work_of
from shoal.engines.compact import Compact, compact_of
from shoal.engines.compiled import Compiled
from shoal.engines.factored import clients_at_once
from shoal.engines.kept_traces import compiled_for
from shoal.engines.loop import Loop
from shoal.engines.one_pool import in_one_pool
from shoal.engines.stepper import run_chunk
from shoal.engines.trace import Untraceable
from shoal.local import Program
from shoal.tree import Tree


class Vectorized:
    """See the module. ``threads`` shares chunks between threads of one core each (two, or one
    where there is but one core to use)."""

    name = "vectorized"

    def __init__(self, threads: int | None = None, cache_bytes: int = CACHE_BYTES) -> None:
        malloc.keep_freed_memory()
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
