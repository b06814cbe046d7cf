"""Data that comes in time order: members cut from a stream, and windows that move with the round.

The order of a data set's rows is its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shoal.errors import UserError
from shoal.worlds.population import Rows
from shoal.worlds.spec import Reader

By = Literal["blocks", "turns"]


def in_time(among: Rows, members: int, by: By = "blocks") -> list[Rows]:
    """``blocks``: member m holds the m-th of ``members`` contiguous runs, as even as can be, so
    that members live at different times. ``turns``: rows go to members 0, 1, ... in turn, so that
    all members live through the whole time.

    >>> [r.tolist() for r in in_time(np.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    >>> [r.tolist() for r in in_time(np.arange(5), 2, "turns")]
    [[0, 2, 4], [1, 3]]
    """
    if by not in ("blocks", "turns"):
        raise UserError(f"by of partition 'time' is {by!r}; it must be blocks or turns.")
    if members > len(among):
        raise UserError(f"members is {members}, but there are only {len(among)} rows in time "
                        f"order; use at most that many.")  # fmt: skip
    if by == "turns":
        return [among[m::members] for m in range(members)]
    return list(np.array_split(among, members))


@dataclass(frozen=True)
class Stream:
    """Which of its n rows a member holds in round t of T.

    Time is cut into T + 1 slots; slot t ends at row ``e_t = floor(n (t + 1) / (T + 1))``. In round
    t a member holds the ``w`` rows before ``max(e_t, w)``, where w is ``window`` or else
    ``floor(n / (T + 1))``, at least 1 and at most n. What comes next is slot t + 1, the rows from
    ``e_t`` to ``e_(t+1)``: tests look at it before anybody trains on it.
    """

    rounds: int
    window: int | None = None

    def size(self, rows: int) -> int:
        width = rows // (self.rounds + 1) if self.window is None else self.window
        return min(rows, max(1, width))

    def end(self, rows: int, round: int) -> int:
        return rows * (round + 1) // (self.rounds + 1)

    def held(self, rows: Rows, round: int) -> Rows:
        """Of a member's rows in time order, those it holds now."""
        size = self.size(len(rows))
        end = max(self.end(len(rows), round), size)
        return rows[end - size : end]

    def ahead(self, rows: Rows, round: int) -> Rows:
        """Those it will meet next and has not met yet."""
        size = self.size(len(rows))
        begin = max(self.end(len(rows), round), size)
        return rows[begin : max(begin, self.end(len(rows), round + 1))]


def read_stream(value: Any, rounds: int, lazy: bool) -> Stream | None:
    """``stream: true`` or ``stream: {window: rows}``."""
    if value is None or value is False:
        return None
    if lazy:
        raise UserError("a lazy world has no stream, for its members draw rows at random; leave "
                        "out lazy or stream.")  # fmt: skip
    if value is True:
        return Stream(rounds)
    if not isinstance(value, Mapping):
        raise UserError(f"stream is {value!r}; it must be true, or a mapping {{window: rows}}.")
    reader = Reader(value, "stream", ("window",))
    return Stream(rounds, reader.whole("window") if reader.given("window") else None)
