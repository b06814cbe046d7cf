"""Who does which share: shares go out to whoever is free, and nothing is waited for in vain.

A share is a pure function of the order, so one whose worker died is simply given out again, and the
last ones, if they take far longer than the others did, are given to a second worker as well: the
first answer counts. Answers come in the order of the members, whoever was faster.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from shoal.core.errors import UserError

DEATHS = 3  # of workers over one share, before it is given up
STRAGGLER = 3  # times what the slowest share took: then a second worker tries
SOONEST = 5.0  # seconds before that
T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Died:
    """Stands for the answer of a worker that is gone."""

    how: str
    blameless: bool = False  # its whole machine went, so the share is not what killed it


class Crew(Protocol[T]):
    """Workers that take one share each."""

    def tend(self) -> None:
        """Look after the workers: replace those that are gone, or say that nobody is left."""

    def idle(self) -> bool: ...

    def choose(self, shares: Sequence[int]) -> int:
        """Which of these is best for somebody who is idle."""

    def give(self, index: int) -> None:
        """Hand share ``index`` to an idle worker."""

    def wait(self, block: bool) -> Iterable[tuple[int, T | Died]]:
        """What was answered meanwhile; with ``block``, after a moment if there is nothing yet."""

    def abandon(self) -> None:
        """Stop whoever is at work: nobody will ask for the answers."""


def given_up(who: str, how: str) -> UserError:
    return UserError(
        f"engine: {DEATHS} workers of engine ray were lost one after another over the same work "
        f"({who}; the last one {how}); if memory ran out, write fewer ray.workers, a ray.memory or "
        "a smaller local.batch, or use engine: stacked"
    )


class Dispatch:
    """The answers to shares ``0..count``. At most ``window`` of them are out or waiting for their
    turn, which bounds memory. ``who`` names a share's clients, ``say`` is told of every death.
    ``once``: nobody else tries what takes long. ``give_up`` answers for a share over which several
    workers were lost; without it that is an error."""

    def __init__(
        self,
        count: int,
        window: int,
        who: Callable[[int], str],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        once: bool = False,
        give_up: Callable[[int, str], object] | None = None,
    ) -> None:
        self.count, self.window, self.who, self.say, self.clock = count, window, who, say, clock
        self.once, self.give_up = once, give_up
        self._left, self._turn = dict.fromkeys(range(count)), 0  # shares, in their order
        self._again: deque[int] = deque()
        self._out: Counter[int] = Counter()  # how many workers are at a share
        self._began: dict[int, float] = {}
        self._slowest = 0.0
        self._deaths: Counter[int] = Counter()
        self._found: dict[int, object] = {}

    def answers(self, crew: Crew[T]) -> Iterator[T]:
        try:
            while self._turn < self.count:
                crew.tend()
                while crew.idle() and (index := self._next(crew)) is not None:
                    self._began.setdefault(index, self.clock())
                    self._out[index] += 1
                    crew.give(index)
                for index, answer in crew.wait(block=self._turn not in self._found):
                    self._take(index, answer)
                while self._turn in self._found:
                    yield self._found.pop(self._turn)  # type: ignore[misc]
                    self._turn += 1
        finally:
            if self._turn < self.count:
                crew.abandon()

    def _next(self, crew: Crew[T]) -> int | None:
        """A share for somebody who is free."""
        if self._again:
            return self._again.popleft()
        near = [index for index in islice(self._left, self.window)
                if index < self._turn + self.window]  # fmt: skip
        if not near:
            return self._straggler()
        index = crew.choose(near)
        del self._left[index]
        return index

    def _straggler(self) -> int | None:
        if self.once or self._left or not self._slowest:
            return None
        due = self.clock() - max(SOONEST, STRAGGLER * self._slowest)
        late = [i for i, n in self._out.items() if n == 1 and self._began[i] < due]
        return min(late, key=self._began.__getitem__, default=None)

    def _take(self, index: int, answer: object) -> None:
        self._out[index] -= 1
        if index < self._turn or index in self._found:
            return  # a second worker was faster
        if not isinstance(answer, Died):
            self._found[index] = answer
            self._slowest = max(self._slowest, self.clock() - self._began[index])
            del self._out[index]
            return
        self.say(f"a worker {answer.how}; its share ({self.who(index)}) is done again")
        self._deaths[index] += not answer.blameless
        if self._deaths[index] == DEATHS:
            if self.give_up is None:
                raise given_up(self.who(index), answer.how)
            self._found[index] = self.give_up(index, answer.how)
            return
        if not self._out[index]:
            del self._began[index], self._out[index]
            self._again.append(index)
