"""Arrivals and departures become sessions, after they have settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Sessions:
    """A change of members must be seen at ``settle`` further starts of rounds to be a session.

    >>> sessions = Sessions(settle=1)
    >>> sessions.members_of_round([0, 1])
    ((0, 1), True)
    >>> sessions.members_of_round([0, 1, 2]), sessions.members_of_round([0, 1, 2])
    (((0, 1), False), ((0, 1, 2), True))
    """

    settle: int
    current: frozenset[int] = frozenset()  # members of the session
    _changed: frozenset[int] = field(default=frozenset())
    _seen: int = 0

    def members_of_round(self, here: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """Members of the next round, and whether a session begins with it."""
        now = frozenset(here)
        if now == self.current:
            self._seen = 0
            return tuple(sorted(now)), False
        self._seen = self._seen + 1 if now == self._changed else 1
        self._changed = now
        # before a change has settled, the round is for those of the session who are still here
        left = now & self.current
        if self._seen > self.settle or not left:
            self.current, self._seen = now, 0
            return tuple(sorted(now)), True
        return tuple(sorted(left)), False
