"""Sorted member ids as a few ranges: a million members cost as much as ten."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import overload


class Spans(Sequence[int]):
    """Disjoint ranges of ids in increasing order, read as one sorted sequence.

    >>> s = Spans([range(5, 7), range(0, 3), range(3, 4)])
    >>> list(s), len(s), s[4], 6 in s, s.pairs
    ([0, 1, 2, 3, 5, 6], 6, 5, True, ((0, 4), (5, 7)))
    """

    __slots__ = ("_before", "pairs")

    def __init__(self, ranges: Iterable[range]) -> None:
        merged: list[tuple[int, int]] = []
        for begin, end in sorted((r.start, r.stop) for r in ranges if len(r)):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        self.pairs = tuple(merged)
        self._before = (0, *accumulate(end - begin for begin, end in merged))

    def __len__(self) -> int:
        return self._before[-1]

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        which = bisect_right(self._before, place) - 1
        return self.pairs[which][0] + place - self._before[which]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(begin, end) for begin, end in self.pairs)

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and any(a <= member < b for a, b in self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.pairs == other.pairs

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return " + ".join(f"{a}..{b - 1}" for a, b in self.pairs) or "nobody"


def tidy(ranges: Iterable[range]) -> range | Spans:
    """One plain range where that is enough."""
    spans = Spans(ranges)
    return range(*spans.pairs[0]) if len(spans.pairs) == 1 else spans


def pairs(members: Sequence[int]) -> list[list[int]]:
    """``[[first, one past last], ...]``, as plain JSON values."""
    if isinstance(members, range):
        return [[members.start, members.stop]]
    spans = members if isinstance(members, Spans) else Spans(range(m, m + 1) for m in members)
    return [list(pair) for pair in spans.pairs]


def spread(members: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the members, evenly spaced; all of them when they are that few.

    >>> spread(range(100), 4)
    [0, 25, 50, 75]
    """
    count = len(members)
    if count <= most:
        return list(members)
    return [members[i * count // most] for i in range(most)]
