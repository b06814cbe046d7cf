"""Several runs on one engine that take turns: one at a time, except where clients train.

A run plays in a thread of its own and holds the ``baton`` while it works, so that runs may share a
module. While its clients train on the engine's threads it hands the baton on: what one run does
alone (sums, scores, the journal) then falls into the training of another. Every run's results come
in its own order, so timing changes no bit. Runs whose clients are better stacked meet at a table
instead (:mod:`shoal.engines.together`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Lock

from shoal.engines.base import Order, Results
from shoal.engines.vectorized import Vectorized
from shoal.tree import Tree


class Turns(Vectorized):
    """The shared engine; its runs hold ``baton`` whenever they do anything."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads)
        self.baton = Lock()

    def seat(self) -> Seat:
        return Seat(self)

    def _awaited(self, results: Future[list[Results]]) -> list[Results]:
        """Let another run work for as long as there is something to wait for."""
        if results.done():
            return results.result()
        self.baton.release()
        try:
            return results.result()
        finally:
            self.baton.acquire()


class Seat:
    """One run's share of the engine; an ``Engine`` like any other to the run."""

    name = "vectorized"

    def __init__(self, engine: Turns) -> None:
        self._engine = engine

    @property
    def notes(self) -> list[str]:
        return self._engine.notes

    def train(self, order: Order) -> Iterator[Results]:
        return self._engine.train(order)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self._engine.ask(order, question, payload)

    def close(self) -> None:
        """The engine stays open for the others."""
