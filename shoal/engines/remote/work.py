"""What a worker does with a share: one thread, the traced step where the method allows it."""

from __future__ import annotations

from dataclasses import replace

from shoal.engines.base import Order, Results
from shoal.engines.loop import Loop
from shoal.engines.remote.describe import Question
from shoal.engines.scattered import Scattered
from shoal.engines.vectorized import Vectorized
from shoal.tree import Tree


def _dense(results: Results) -> Results:
    """What can be written to shared memory."""
    delta = results.delta
    return results._replace(delta=delta.dense()) if isinstance(delta, Scattered) else results


class ShareWork:
    """Keeps a worker's traces from share to share."""

    def __init__(self) -> None:
        self._vectorized = Vectorized(threads=1)
        self._loop = Loop()
        self._told = 0

    def train(self, order: Order) -> list[Results]:
        if order.program.method.eager_reason:
            return list(self._loop.train(order))
        whole = replace(order, summed=False)  # every delta travels
        return [_dense(results) for results in self._vectorized.train(whole)]

    def ask(self, order: Order, question: Question) -> list[Tree]:
        return self._loop.ask(order, question.bound(order.program), question.payload)

    def news(self) -> list[str]:
        """Notes for the user since the last call."""
        new = self._vectorized.notes[self._told :]
        self._told += len(new)
        return new
