"""When rows came: a column of dates or of numbers, read for a dated world, and cut into periods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError

Times = NDArray[np.float64]
UNIT_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
MONTHS = {"month": 1, "quarter": 3, "year": 12}
DAY = UNIT_SECONDS["day"]
Calendar = str | Mapping[str, Any]  # a column, or its column, unit, origin and period


class TimeColumn(NamedTuple):
    """When every row came: seconds since 1970 (UTC) of dates, else the column's own numbers."""

    column: str
    train: Times
    test: Times
    dated: bool

    first: NDArray[np.bool_] | None = None  # training rows of the first period

    @classmethod
    def read(
        cls, calendar: Calendar, values: NDArray[Any], test: NDArray[np.bool_], where: object
    ) -> TimeColumn:
        """A column of a table, its rows for testing apart."""
        column = column_of(calendar)
        times, dated = times_of(values, column, where)
        return cls(column, times[~test], times[test], dated).begun(calendar)

    def begun(self, calendar: Calendar) -> TimeColumn:
        """With ``first``, if the calendar says how time is cut. One that is wrong says nothing
        here: the world, which reads it next, refuses it in full."""
        if isinstance(calendar, str) or not len(self.train):
            return self
        unit, origin, moments = calendar.get("unit"), calendar.get("origin"), self.train
        try:
            if unit is not None:
                origin = seconds_of(origin)
                moments = (origin or 0.0) + moments * UNIT_SECONDS[unit]
            start = float(moments.min()) if unit is None or origin is None else origin
            cut = periods(start, self.dated or unit is not None, calendar.get("period"),
                          calendar.get("origin"))  # fmt: skip
        except (KeyError, UncutError):
            return self
        first = cut.of(moments) == 0
        return self._replace(first=first) if first.any() else self


def column_of(calendar: Calendar) -> str:
    return calendar if isinstance(calendar, str) else str(calendar["column"])


def times_of(values: NDArray[Any], column: str, where: object) -> tuple[Times, bool]:
    """Seconds of dates or plain numbers, and which of the two it is; every row must have one.

    >>> times_of(np.array(["1970-01-02", "1970-01-01T00:01"]), "day", "visits.csv")
    (array([8.64e+04, 6.00e+01]), True)
    >>> times_of(np.array([3, 5]), "week", "visits.csv")
    (array([3., 5.]), False)
    """
    if values.dtype.kind in "iuf":
        found, dated = values.astype(np.float64), False
    elif values.dtype.kind == "M":
        empty = np.isnat(values)
        found = values.astype("datetime64[us]").astype(np.int64) / 1e6
        found[empty] = np.nan
        dated = True
    elif values.dtype.kind in "OUS":
        # dates repeat: each is read once
        different, places = np.unique(values.astype(str), return_inverse=True)
        found = np.array([_seconds(text) for text in different.tolist()])[places.reshape(-1)]
        dated = True
    else:
        raise _wrong(values, 0, column, where)
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise _wrong(values, int(bad[0]), column, where)
    return found, dated


def seconds_of(value: object) -> float | None:
    """Seconds since 1970 (UTC, where no zone is named) of a date or of its text; None if it is
    none.

    >>> seconds_of("1970-01-01 01:00"), seconds_of("soon"), seconds_of(date(1970, 1, 2))
    (3600.0, None, 86400.0)
    """
    try:
        when = datetime.fromisoformat(str(value).strip())
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def told(seconds: float) -> str:
    """A moment for people: the day, and the time of day where it is not midnight.

    >>> told(86400.0), told(86460.0)
    ('1970-01-02', '1970-01-02 00:01')
    """
    when = datetime.fromtimestamp(seconds, UTC)
    return when.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")


def plain_dates(value: Any) -> Any:
    """The same value with dates (as YAML reads them) as text, so that JSON can hold it.

    >>> plain_dates({"origin": date(2024, 3, 1)})
    {'origin': '2024-03-01'}
    """
    if isinstance(value, dict):
        return {key: plain_dates(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_dates(inner) for inner in value]
    return value.isoformat() if isinstance(value, date) else value


def _seconds(text: str) -> float:
    found = seconds_of(text)
    return np.nan if found is None else found


def _wrong(values: NDArray[Any], row: int, column: str, where: object) -> UserError:
    value = values[row].item() if hasattr(values[row], "item") else values[row]
    return UserError(
        f"column {column!r} of {where} has {value!r} in row {row + 1}, which is no date; write "
        f"dates as 2024-03-01 or 2024-03-01 12:30, or numbers"
    )


# ---- periods -------------------------------------------------------------------------------------
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


class UncutError(ValueError):
    """Time cannot be cut like this: the key that is wrong, and what would be right."""

    def __init__(self, key: str, right: str) -> None:
        super().__init__(key, right)
        self.key, self.right = key, right


def periods(first: float, dated: bool, period: Any, origin: Any = None, rounds: int = 1) -> Periods:
    """Time is cut from the day (the month, of months; the number, of numbers) of ``first`` on,
    unless ``origin`` says when.

    >>> told(periods(5 * DAY + 7, True, "14 days").begin(1))
    '1970-01-20'
    """
    if not dated:
        if isinstance(period, bool) or not isinstance(period, int | float) or not period > 0:
            raise UncutError("period", "a number above 0, for the column's times are plain numbers "
                                  "(or say their unit: minute, hour, day, week)")  # fmt: skip
        origin = float(first) if origin is None else origin
        if isinstance(origin, bool) or not isinstance(origin, int | float):
            raise UncutError("origin", "a number, as the column's times are")
        return Periods(float(origin), float(period), 0, rounds, dated=False)
    parts = re.fullmatch(r"(?:(\d+) *)?([a-z]+?)s?", str(period).strip())
    count, unit = (int(parts[1] or 1), parts[2]) if parts else (0, "")
    if not count or unit not in {**UNIT_SECONDS, **MONTHS}:
        raise UncutError("period", "a length of time, such as week, 14 days or month")
    months = count * MONTHS.get(unit, 0)
    whole = float(np.floor(first / DAY) * DAY)
    begin = Periods(whole, 0.0, 1).begin(0) if months else whole
    seconds = begin if origin is None else seconds_of(origin)
    if seconds is None:
        raise UncutError("origin", "a date, such as 2024-03-01")
    if months and Periods(seconds, 0.0, 1).begin(0) != seconds:
        raise UncutError("origin", "the first day of a month, where periods are months")
    return Periods(seconds, count * UNIT_SECONDS.get(unit, 0.0), months, rounds)
