"""Time cut into periods, and rounds played in each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.data.time_column import UNIT_SECONDS, Times, seconds_of, told
from shoal.worlds.spec import Reader

MONTHS = {"month": 1, "quarter": 3, "year": 12}
DAY = UNIT_SECONDS["day"]


@dataclass(frozen=True)
class Periods:
    """Period p begins at ``origin + p length``, or ``p months`` months after ``origin``; ``rounds``
    rounds are played in each. ``dated``: times are seconds since 1970, else plain numbers."""

    origin: float
    length: float
    months: int = 0
    rounds: int = 1
    dated: bool = True

    def of(self, times: Times | float) -> NDArray[np.int64]:
        """The number of the period that each moment falls into.

        >>> Periods(0.0, 10.0, dated=False).of(np.array([0.0, 9.9, 10.0, -0.1])).tolist()
        [0, 0, 1, -1]
        """
        moments = np.asarray(times, dtype=np.float64)
        if self.months:
            return (_month(moments) - _month(np.float64(self.origin))) // self.months
        return np.floor((moments - self.origin) / self.length).astype(np.int64)

    def begin(self, period: int) -> float:
        """When a period begins."""
        if not self.months:
            return self.origin + period * self.length
        month = int(_month(np.float64(self.origin))) + period * self.months
        return float(np.datetime64(month, "M").astype("datetime64[s]").astype(np.int64))

    def moment(self, round: int) -> float:
        """When a round is: rounds of a period are evenly spread over it."""
        period, turn = divmod(round, self.rounds)
        begin = self.begin(period)
        return begin + turn / self.rounds * (self.begin(period + 1) - begin)

    def name(self, period: int) -> str:
        """How a period is called: the day it begins, or the number."""
        begin = self.begin(period)
        return told(begin) if self.dated else f"{begin:g}"


def _month(seconds: Times | np.float64) -> NDArray[np.int64]:
    whole = np.floor(seconds).astype(np.int64).astype("datetime64[s]")
    found: NDArray[np.int64] = whole.astype("datetime64[M]").astype(np.int64)
    return found


def read_periods(reader: Reader, first: float, dated: bool, default: str | None = None) -> Periods:
    """``period``, ``origin`` and ``rounds_per_period``; time is cut from the day (the month, of
    months; the number, of numbers) of ``first`` on, unless ``origin`` says when."""
    rounds = reader.whole("rounds_per_period", 1)
    given = reader.raw("period", default)
    if not dated:
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            reader.bad("period", "a number above 0, for the column's times are plain numbers "
                                 "(or say their unit: minute, hour, day, week)")  # fmt: skip
        origin = reader.raw("origin", float(first))
        if isinstance(origin, bool) or not isinstance(origin, int | float):
            reader.bad("origin", "a number, as the column's times are")
        return Periods(float(origin), float(given), 0, rounds, dated=False)
    parts = re.fullmatch(r"(?:(\d+) *)?([a-z]+?)s?", str(given).strip())
    count, unit = (int(parts[1] or 1), parts[2]) if parts else (0, "")
    if not count or unit not in {**UNIT_SECONDS, **MONTHS}:
        reader.bad("period", "a length of time, such as week, 14 days or month")
    months = count * MONTHS.get(unit, 0)
    whole = float(np.floor(first / DAY) * DAY)
    begin = Periods(whole, 0.0, 1).begin(0) if months else whole
    text = reader.raw("origin", told(begin))
    seconds = seconds_of(text)
    if seconds is None:
        reader.bad("origin", "a date, such as 2024-03-01")
    if months and Periods(seconds, 0.0, 1).begin(0) != seconds:
        reader.bad("origin", "the first day of a month, where periods are months")
    return Periods(seconds, count * UNIT_SECONDS.get(unit, 0.0), months, rounds)
