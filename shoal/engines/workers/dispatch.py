"""Shares go out to whoever is free and come back in the order of the members.

At most ``window`` shares are out or waiting for their turn, which bounds memory. A share whose
worker died is given out again; being a pure function of the order, it has the same bits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from shoal.errors import UserError

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
