"""Shares go out to whoever is free; what a worker does with one and sends back."""

from __future__ import annotations

import pickle
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch

from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.tree import Tree
from shoal.engines.api import Order, Results, Scattered
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.engines.workers.shares import Back, Out, Question, ShareJob, order_from, travelling

# ---- dispatch ------------------------------------------------------------------------------------
# Shares go out to whoever is free and come back in the order of the members.
#
# At most ``window`` shares are out or waiting for their turn, which bounds memory. A share whose
# worker died is given out again; being a pure function of the order, it has the same bits.

DEATHS = 3  # of workers over one share, before it is given up
T = TypeVar("T", covariant=True)


class Died:
    """Stands for the answer of a worker that died; it has been replaced already."""

    def __init__(self, how: str) -> None:
        self.how = how


class Crew(Protocol[T]):
    """Workers that take one share each."""

    def idle(self) -> bool: ...

    def give(self, index: int) -> None:
        """Hand share ``index`` to an idle worker."""

    def wait(self, block: bool) -> Iterable[tuple[int, T | Died]]:
        """What was answered meanwhile; with ``block``, at least one answer."""

    def abandon(self) -> None:
        """Stop whoever is at work: nobody will ask for the answers."""


def in_order(
    crew: Crew[T], count: int, window: int, who: Callable[[int], str], name: str
) -> Iterator[T]:
    """The answers to shares ``0..count``, in that order. ``who`` names a share's clients."""
    turn = given = out = 0
    again: deque[int] = deque()
    answers: dict[int, T] = {}
    deaths: Counter[int] = Counter()
    try:
        while turn < count:
            while crew.idle() and (again or given < min(count, turn + window)):
                if not again:
                    again.append(given)
                    given += 1
                out += 1
                crew.give(again.popleft())
            for index, answer in crew.wait(block=turn not in answers):
                out -= 1
                if not isinstance(answer, Died):
                    answers[index] = answer
                    continue
                deaths[index] += 1
                if deaths[index] == DEATHS:
                    raise UserError(_given_up(name, who(index), answer.how))
                again.append(index)
            if turn in answers:
                yield answers.pop(turn)
                turn += 1
    finally:
        if out:
            crew.abandon()


def _given_up(name: str, clients: str, how: str) -> str:
    return (
        f"engine: {DEATHS} workers of engine {name} died one after another over the same work "
        f"({clients}; the last one {how}); if memory ran out, set workers to fewer or a smaller "
        f"batch, or use engine: stacked"
    )


# ---- work ----------------------------------------------------------------------------------------
# What a worker does with a share: one thread, the traced step where the method allows it.


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
        if order.program.method.loop_only_reason:
            return list(self._loop.train(order))
        whole = replace(order, summed=False)  # every delta travels
        return [_dense(results) for results in self._stacked.train(whole)]

    def ask(self, order: Order, question: Question) -> list[Tree]:
        return self._loop.ask(order, question.bound(order.program), question.payload)

    def news(self) -> list[str]:
        """Notes for the user since the last call."""
        return self._stacked.notes.news()


@dataclass(frozen=True)
class ShareAnswer:
    found: Tree
    notes: tuple[str, ...] = ()
    error: bytes | None = None

    def checked(self) -> Tree:
        """What was found; the worker's error is raised here as if it had happened here."""
        if self.error is not None:
            raise pickle.loads(self.error)
        return self.found


def answered(
    work: ShareWork, job: ShareJob, program: ClientProgram, back: Back, out: Out
) -> ShareAnswer:
    """Do a job. Whatever a method does wrong comes back as an error, not as a death."""
    try:
        order = order_from(job, program, back)
        if job.question is None:
            found: Tree = tuple(work.train(order))
        else:
            payload = tree.apply(back, job.question.payload)
            found = tuple(work.ask(order, replace(job.question, payload=payload)))
        with torch.inference_mode():
            return ShareAnswer(travelling(out, found), tuple(work.news()))
    except Exception as error:
        return ShareAnswer((), error=_packed(error))


def _packed(error: Exception) -> bytes:
    """The error as it is, with the worker's traceback; in words if it does not travel."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(f"in a worker:\n{text}")
    return pickle.dumps(error)
