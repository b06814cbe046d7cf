"""When rows came: a column of dates or of numbers, read for a dated world."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError

Times = NDArray[np.float64]
UNIT_SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}


class TimeColumn(NamedTuple):
    """When every row came: seconds since 1970 (UTC) of dates, else the column's own numbers."""

    column: str
    train: Times
    test: Times
    dated: bool

    @classmethod
    def cut(
        cls, column: str, values: NDArray[Any], test: NDArray[np.bool_], where: object
    ) -> TimeColumn:
        """A column of a table, its rows for testing apart."""
        times, dated = times_of(values, column, where)
        return cls(column, times[~test], times[test], dated)


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
