"""Any sorted set of member ids as one array: four bytes a member."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shoal.worlds.spans import Spans

Array = NDArray[np.int32]
Key = TypeVar("Key")
Value = TypeVar("Value")


class Roster(Sequence[int]):
    """Sorted ids, read as a sequence of whole numbers.

    >>> r = Roster(np.array([2, 5, 9], dtype=np.int32))
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
        return isinstance(other, Roster) and np.array_equal(self.ids, other.ids)

    def __hash__(self) -> int:
        return hash((len(self.ids), self.ids[:8].tobytes()))

    def __repr__(self) -> str:
        return f"{len(self.ids):,} members"


def ids_of(members: Sequence[int]) -> Array:
    """The ids as an array, whatever holds them."""
    if isinstance(members, Roster):
        return members.ids
    if isinstance(members, range):
        return np.arange(members.start, members.stop, dtype=np.int32)
    if isinstance(members, Spans):
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
