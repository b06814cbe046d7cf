"""What a worker sends back: results or answers in a form that travels, or the error instead."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, replace

import torch

from shoal import tree
from shoal.engines.remote.describe import Back, Job, Out, Pools, order_from, travelling
from shoal.engines.remote.work import ShareWork
from shoal.local import Program
from shoal.tree import Tree


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


def answered(
    work: ShareWork, job: Job, program: Program, pools: Pools, back: Back, out: Out
) -> Answer:
    """Do a job. Whatever a method does wrong comes back as an error, not as a death."""
    try:
        order = order_from(job, program, pools, back)
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
