"""What a worker does with a share and sends back."""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import Model
from shoal.engines.api import Order, Results, Sums
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.plan import StackPlan
from shoal.metrics.evaluate import passes
from shoal.runs.cluster.memories import BlockReader, Copy, kept_of
from shoal.runs.cluster.shares import Branch, Question, cut
from shoal.runs.cluster.travel import (
    Held,
    Members,
    Rows,
    array,
    arrived,
    clients_data,
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
    keeps: bool = False  # what clients remember stays on the node


@dataclass(frozen=True)
class ScoreJob:
    """Rows to put through a model, so many at a time."""

    program: int
    theta: object
    stats: object
    rows: Rows
    sizes: tuple[int, ...]
    copied: bool  # as the driver does before: last bits may follow from where rows lie in memory


@dataclass(frozen=True)
class ShareAnswer:
    """Results (or answers to a question) and, branch by branch, the sums of what was added up, as
    they travel."""

    found: Tree = ()
    sums: tuple[Tree, ...] = ()
    notes: tuple[str, ...] = ()
    error: bytes | None = None
    starved: str = ""  # how the worker ran out of memory
    # bytes that a client remembers of each part, where that stayed on the node; and where it is
    kept: tuple[int | None, ...] | None = None
    copies: tuple[Copy, ...] = ()

    def checked(self) -> ShareAnswer:
        """The worker's error is raised here as if it had happened here."""
        if self.error is not None:
            raise pickle.loads(self.error)
        return self


class ShareWork:
    """A worker: it keeps programs with their traces, and the latest tensors that it fetched."""

    def __init__(
        self,
        threads: int,
        get: Callable[[Any], Any],
        unpickle: Callable[[bytes], Any],
        lost: tuple[type[Exception], ...],
    ) -> None:
        self._stacked, self._loop = Stacked(threads), Loop()
        self._held, self._get, self._unpickle = Held(get), get, unpickle
        self._programs: dict[int, ClientProgram] = {}
        self._lost = lost

    def scores(self, job: ScoreJob, program: Any) -> ShareAnswer:
        """Losses and hits of each row, batch by batch."""
        try:
            task = self._program(job.program, program)[0].task
            data = clients_data(job.rows, self._held)[0]
            if job.copied:
                x, rows = data.pool.x.index_select(0, data.rows), torch.arange(len(data))
                data = replace(data, pool=data.pool._replace(x=x), rows=rows)
            ends = list(accumulate(job.sizes, initial=0))
            parts = [slice(begin, end) for begin, end in pairwise(ends)]
            model = Model(self._held(job.theta), arrived(job.stats))
            return ShareAnswer(travelling(array, tuple(passes(task, model, data, parts))))
        except Exception as error:
            return ShareAnswer(error=_packed(error))

    def _program(self, number: int, stored: Any) -> tuple[ClientProgram, bool]:
        """A program, and whether it is new here."""
        if new := number not in self._programs:
            self._programs[number] = self._unpickle(self._get(stored))
        return self._programs[number], new

    def answer(self, job: ShareJob, frame: Tree, program: Any) -> tuple[ShareAnswer, Tree]:
        """Do a job: the answer, and what stays here. Whatever a method does wrong comes back as an
        error, not as a death."""
        try:
            own, new = self._program(job.program, program)
            read = BlockReader(job.members.blocks, self._get, self._lost)
            order = order_from(frame, job.members, own, self._held, read)
            answer, kept = self._done(replace(order, longest=job.longest), job)
            if new:
                gc.freeze()  # else what stays is looked at whenever thousands of members come
            return replace(answer, notes=tuple(self._stacked.notes.news())), kept
        except Exception as error:
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                return ShareAnswer(starved=str(error) or "MemoryError"), None
            return ShareAnswer(error=_packed(error)), None

    def _done(self, order: Order, job: ShareJob) -> tuple[ShareAnswer, Tree]:
        engine = self._loop if order.program.method.loop_only_reason else self._stacked
        if job.question is not None:
            payload = tree.apply(arrived, job.question.payload)
            answers = engine.ask(order, job.question.bound(order.program), payload)
            return ShareAnswer(travelling(array, tuple(answers))), None
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
            stay, sizes = (kept_of(results) if job.keeps else None) or (None, None)
            if sizes is not None:
                results = [own._replace(memories=()) for own in results]
            away = [sent(own, order.program) for own in results]
            return ShareAnswer(away, travelling(array, tuple(sums)), kept=sizes), stay


def _packed(error: Exception) -> bytes:
    """The error as it is, with the worker's traceback; in words if it does not travel."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(f"in a worker:\n{text}")
    return pickle.dumps(error)
