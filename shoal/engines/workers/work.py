"""What a worker does with a share: one thread, the traced step where the method allows it."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, replace

import torch

from shoal import tree
from shoal.engines.api import Order, Results
from shoal.engines.client_round import Program
from shoal.engines.loop import Loop
from shoal.engines.sparse_rows import Scattered
from shoal.engines.stacked.engine import Stacked
from shoal.engines.workers.shares import Back, Job, Out, Question, order_from, travelling
from shoal.tree import Tree


def _dense(results: Results) -> Results:
    """What can be written to shared memory."""
    delta = results.delta
    return results._replace(delta=delta.dense()) if isinstance(delta, Scattered) else results


class ShareWork:
    """Keeps a worker's traces from share to share."""

    def __init__(self) -> None:
        self._stacked = Stacked(threads=1)
        self._loop = Loop()

    def train(self, order: Order) -> list[Results]:
        if order.program.method.eager_reason:
            return list(self._loop.train(order))
        whole = replace(order, summed=False)  # every delta travels
        return [_dense(results) for results in self._stacked.train(whole)]

    def ask(self, order: Order, question: Question) -> list[Tree]:
        return self._loop.ask(order, question.bound(order.program), question.payload)

    def news(self) -> list[str]:
        """Notes for the user since the last call."""
        return self._stacked.notes.news()


@dataclass(frozen=True)
class Answer:
    found: Tree
    notes: tuple[str, ...] = ()
    error: bytes | None = None

    def checked(self) -> Tree:
        """What was found; the worker's error is raised here as if it had happened here."""
        if self.error is not None:
            raise pickle.loads(self.error)
        return self.found


def answered(work: ShareWork, job: Job, program: Program, back: Back, out: Out) -> Answer:
    """Do a job. Whatever a method does wrong comes back as an error, not as a death."""
    try:
        order = order_from(job, program, back)
        if job.question is None:
            found: Tree = tuple(work.train(order))
        else:
            payload = tree.apply(back, job.question.payload)
            found = tuple(work.ask(order, replace(job.question, payload=payload)))
        with torch.inference_mode():
            return Answer(travelling(out, found), tuple(work.news()))
    except Exception as error:
        return Answer((), error=_packed(error))


def _packed(error: Exception) -> bytes:
    """The error as it is, with the worker's traceback; in words if it does not travel."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(f"in a worker:\n{text}")
    return pickle.dumps(error)
