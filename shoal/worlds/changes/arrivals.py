"""Rows that arrive as time passes: which of its rows a member holds in a round of a dated world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.data.dataset import Dataset
from shoal.data.time_column import Periods
from shoal.worlds.members.availability import Availability
from shoal.worlds.members.ids import Array
from shoal.worlds.members.population import Population, Rows
from shoal.worlds.members.stays import Mask
from shoal.worlds.periods import read_column, read_moments
from shoal.worlds.spec import Reader

MOST = 100_000  # periods


@dataclass(frozen=True, eq=False)
class Arrivals:
    """``slots[r]`` is the period in which row r comes. In a round of period p a member holds its
    rows of the last ``window`` periods (None: of all), p's included; those of period p + 1 come
    next, and models are scored on them before anybody trains on them. So the last period is only
    scored on."""

    slots: NDArray[np.int32]
    periods: Periods
    count: int  # periods, the last included
    window: int | None = 1

    @property
    def rounds(self) -> int:
        return (self.count - 1) * self.periods.rounds

    def slot(self, round: int) -> int:
        """The period that a round is played in; data stand still during it."""
        return round // self.periods.rounds

    def held(self, rows: Rows, round: int) -> Rows:
        """Of a member's rows, those it holds now."""
        now, slots = self.slot(round), self.slots[rows]
        first = 0 if self.window is None else now - self.window + 1
        found: Rows = rows[(slots >= first) & (slots <= now)]
        return found

    def ahead(self, rows: Rows, round: int) -> Rows:
        """Those that come next."""
        found: Rows = rows[self.slots[rows] == self.slot(round) + 1]
        return found

    def come(self, population: Population, members: int) -> NDArray[np.int64]:
        """``[periods, members]``: rows that come to each."""
        found = [
            np.bincount(self.slots[population.rows(m)], minlength=self.count)
            for m in range(members)
        ]
        return np.stack(found, 1)

    def sizes(self, population: Population, members: int) -> set[int]:
        """Every number of rows that a member may hold."""
        found = np.unique(self.amounts(self.come(population, members))[:-1])
        return set(found[found > 0].tolist())

    def amounts(self, come: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[periods, members]``: rows that each holds, from those that come."""
        total = come.cumsum(0)
        if self.window is None:
            return total
        before = np.zeros_like(total)
        before[self.window :] = total[: -self.window]
        held: NDArray[np.int64] = total - before
        return held


@dataclass(frozen=True, eq=False)
class WithRows:
    """Members without a row in the window cannot be reached, besides those that ``other`` lets
    sleep."""

    arrivals: Arrivals
    holds: Mask  # [periods, members]
    other: Availability | None = None

    def awake(self, ids: Array, round: int) -> Mask:
        mask: Mask = self.holds[self.arrivals.slot(round), ids]
        return mask if self.other is None else mask & self.other.awake(ids, round)

    def saved(self) -> dict[str, Any]:
        also = {} if self.other is None else {"and": self.other.saved()}
        return {"name": "with rows", **also}


def belongs(come: NDArray[np.int64]) -> Mask:
    """``[periods, members]``: from the first period with rows of a member to its last."""
    some = come > 0
    came = np.logical_or.accumulate(some, 0)
    mask: Mask = came & np.logical_or.accumulate(some[::-1], 0)[::-1]
    return mask


def read_arrivals(reader: Reader, data: Dataset) -> Arrivals:
    """``column``, ``unit``, ``origin``, ``period``, ``rounds_per_period`` and ``window`` of a dated
    world."""
    times = read_column(reader, data)
    periods, moments = read_moments(reader, times)
    first = int(periods.of(moments.min()))
    if first < 0:
        early = int((periods.of(moments) < 0).sum())
        reader.bad("origin", f"at or before the first row; {early:,} rows are earlier")
    count = int(periods.of(moments.max())) + 1
    if not 2 <= count <= MOST:
        reader.bad("period", f"such that the rows span 2 to {MOST:,} periods, not {count:,}")
    slots = periods.of(moments).astype(np.int32)
    empty = np.flatnonzero(np.bincount(slots, minlength=count) == 0)
    if len(empty):
        at = int(empty[0])
        more = f" (and into {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(
            f"period of {reader.what} is {reader.raw('period')!r}, but no row of {times.column!r} "
            f"falls into the period from {periods.name(at)} to {periods.name(at + 1)}{more}; write "
            f"a longer period, or another origin."
        )
    window = reader.raw("window", 1)
    if window != "all":
        window = reader.whole("window", 1)
    return Arrivals(slots, periods, count, None if window == "all" else window)
