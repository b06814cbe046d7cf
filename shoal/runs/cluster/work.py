"""What a worker does with a share and sends back."""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from shoal.core import tree
from shoal.core.errors import LostMachinesError
from shoal.core.tree import Tree
from shoal.engines.api import Order, Results, Sums
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.plan import StackPlan
from shoal.runs.cluster.shares import Branch, Question, cut
from shoal.runs.cluster.travel import (
    Held,
    Members,
    array,
    arrived,
    order_from,
    sent,
    travelling,
)


@dataclass(frozen=True)
class ShareJob:
    """One share: train these members, or put a question to them."""

    program: int
    members: Members
    longest: int
    plan: StackPlan | None = None
    branches: tuple[Branch, ...] = ()
    question: Question | None = None


@dataclass(frozen=True)
class ShareAnswer:
    """Results (or answers to a question) and, branch by branch, the sums of what was added up, as
    they travel."""

    found: Tree = ()
    sums: tuple[Tree, ...] = ()
    notes: tuple[str, ...] = ()
    error: bytes | None = None

    def checked(self) -> ShareAnswer:
        """The worker's error is raised here as if it had happened here."""
        if self.error is not None:
            raise pickle.loads(self.error)
        return self


class ShareWork:
    """A worker: it keeps programs with their traces, and the latest tensors that it fetched."""

    def __init__(self, threads: int, get: Callable[[Any], Any], unpickle: Callable[[bytes], Any]):
        self._stacked, self._loop = Stacked(threads), Loop()
        self._held, self._get, self._unpickle = Held(get), get, unpickle
        self._programs: dict[int, ClientProgram] = {}

    def answer(self, job: ShareJob, frame: Tree, program: Any) -> ShareAnswer:
        """Do a job. Whatever a method does wrong comes back as an error, not as a death."""
        try:
            if new := job.program not in self._programs:
                self._programs[job.program] = self._unpickle(self._get(program))
            own = self._programs[job.program]
            order = order_from(frame, job.members, own, self._held)
            found, sums = self._done(replace(order, longest=job.longest), job)
            if new:
                gc.freeze()  # else what stays is looked at whenever thousands of members come
            return ShareAnswer(found, sums, tuple(self._stacked.notes.news()))
        except Exception as error:
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                error = LostMachinesError(
                    f"ray: a worker ran out of memory ({error}); say what one needs (ray.memory), "
                    "take fewer ray.workers, or a smaller local.batch"
                )
            return ShareAnswer(error=_packed(error))

    def _done(self, order: Order, job: ShareJob) -> tuple[Tree, tuple[Tree, ...]]:
        engine = self._loop if order.program.method.loop_only_reason else self._stacked
        if job.question is not None:
            payload = tree.apply(arrived, job.question.payload)
            answers = engine.ask(order, job.question.bound(order.program), payload)
            return travelling(array, tuple(answers)), ()
        results: list[Results] = []
        sums: list[Sums | None] = []
        if job.plan is None:
            results += engine.train(order)
        for part, plan, height in cut(order, job.plan, job.branches):
            found, total = self._stacked.branch(part, plan, height)
            results += found
            if total is not None and total.lent is not None:
                total = total._replace(delta=total.delta.clone())  # the next branch writes there
            sums.append(total)
        with torch.inference_mode():
            return [sent(r, order.program) for r in results], travelling(array, tuple(sums))


def _packed(error: Exception) -> bytes:
    """The error as it is, with the worker's traceback; in words if it does not travel."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(f"in a worker:\n{text}")
    return pickle.dumps(error)
