"""Files that others have made: how large they may become, before they have become it.

A file of some kilobytes can hold gigabytes: packed zeros, or a value that names itself again and
again. What is read from one is bounded by how long it is on disk, and nothing in it is run.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from shoal.errors import UserError

PLACES = 1_000_000  # of a value, aliases written out
RATIO, FREE = 100, 2 << 30  # text packs to a tenth; what stays below two gigabytes does no harm


def room(packed: int) -> int:
    """Bytes to which a file of so many may unpack.

    >>> room(1000) == FREE, room(1 << 30) == 100 << 30
    (True, True)
    """
    return max(FREE, RATIO * packed)


def check_room(unpacked: int, packed: int, where: object) -> None:
    """Refuse what says itself that it unpacks to too much."""
    if unpacked > room(packed):
        raise UserError(
            f"{where} would unpack to {unpacked:,} bytes from {packed:,}, and at most "
            f"{room(packed):,} are read; unpack it yourself if you trust it"
        )


class Within(io.RawIOBase):
    """A stream that gives up after ``most`` bytes, whatever its header says."""

    def __init__(self, source: IO[bytes], most: int, where: object) -> None:
        self.source, self.left, self.where = source, most, where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # one byte more than is left tells the end from too much
        content = self.source.read(min(len(buffer), self.left + 1))
        if len(content) > self.left:
            raise UserError(
                f"{self.where} unpacks to more than is read from a file of its length; unpack it "
                "yourself if you trust it"
            )
        self.left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self.source.close()
        super().close()


def within(source: IO[bytes], packed: int, where: object) -> io.BufferedReader:
    """A packed stream, bounded by the length of its file."""
    return io.BufferedReader(Within(source, room(packed), where))


def branches(value: Any) -> Iterable[Any]:
    """What a plain value is made of."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def check_unfolds(value: Any, inner: Callable[[Any], Iterable[Any]] = branches) -> None:
    """Refuse a value that is small because it holds the same thing again and again, or itself.

    >>> check_unfolds([[1, 2], {"a": 3}])
    """
    if _size(value, inner, {}) > PLACES:
        raise UserError(f"it has aliases that unfold to more than {PLACES:,} values")


def _size(value: Any, inner: Callable[[Any], Iterable[Any]], sizes: dict[int, int]) -> int:
    """Values in a value; each is looked at once and added as often as it is named."""
    known = sizes.get(id(value))
    if known is None:
        sizes[id(value)] = PLACES + 1  # seen again from within itself: there is no end to it
        known = 1 + sum(_size(item, inner, sizes) for item in inner(value))
        sizes[id(value)] = known
    return known
