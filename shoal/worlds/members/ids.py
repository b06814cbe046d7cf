"""Sorted member ids as ranges or as one array."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

# ---- spans ---------------------------------------------------------------------------------------
# Sorted member ids as a few ranges: a million members cost as much as ten.


class MemberRanges(Sequence[int]):
    """Disjoint ranges of ids in increasing order, read as one sorted sequence.

    >>> s = MemberRanges([range(5, 7), range(0, 3), range(3, 4)])
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
        return isinstance(other, MemberRanges) and self.pairs == other.pairs

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __repr__(self) -> str:
        return " + ".join(f"{a}..{b - 1}" for a, b in self.pairs) or "nobody"


def tidy(ranges: Iterable[range]) -> range | MemberRanges:
    """One plain range where that is enough."""
    spans = MemberRanges(ranges)
    return range(*spans.pairs[0]) if len(spans.pairs) == 1 else spans


def pairs(members: Sequence[int]) -> list[list[int]]:
    """``[[first, one past last], ...]``, as plain JSON values."""
    if isinstance(members, range):
        return [[members.start, members.stop]]
    spans = (
        members
        if isinstance(members, MemberRanges)
        else MemberRanges(range(m, m + 1) for m in members)
    )
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


# ---- roster --------------------------------------------------------------------------------------
# Any sorted set of member ids as one array: four bytes per member.

Array = NDArray[np.int32]
Key = TypeVar("Key")
Value = TypeVar("Value")


class MemberIds(Sequence[int]):
    """Sorted ids, read as a sequence of whole numbers.

    >>> r = MemberIds(np.array([2, 5, 9], dtype=np.int32))
    >>> list(r), len(r), r[1], 5 in r, 6 in r, r[1:]
    ([2, 5, 9], 3, 5, True, False, [5, 9])
    """

    __slots__ = ("ids",)

    def __init__(self, ids: Array) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [int(i) for i in self.ids[index]]
        return int(self.ids[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())

    def __contains__(self, member: object) -> bool:
        if not isinstance(member, int):
            return False
        place = int(np.searchsorted(self.ids, member))
        return place < len(self.ids) and int(self.ids[place]) == member

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberIds) and np.array_equal(self.ids, other.ids)

    def __hash__(self) -> int:
        return hash((len(self.ids), self.ids[:8].tobytes()))

    def __repr__(self) -> str:
        return f"{len(self.ids):,} members"


def ids_of(members: Sequence[int]) -> Array:
    """The ids as an array, whatever holds them."""
    if isinstance(members, MemberIds):
        return members.ids
    if isinstance(members, range):
        return np.arange(members.start, members.stop, dtype=np.int32)
    if isinstance(members, MemberRanges):
        runs = [np.arange(a, b, dtype=np.int32) for a, b in members.pairs]
        return np.concatenate(runs) if runs else np.empty(0, np.int32)
    return np.asarray(list(members), dtype=np.int32)


class Recent(Generic[Key, Value]):
    """The last few values that were asked for; no part of a world's value (see ``DataCache``)."""

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def __reduce__(self) -> tuple[type[Recent[Key, Value]], tuple[int]]:
        return Recent, (self.most,)
