"""How a world's spec cuts time into periods."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.data.dataset import Dataset
from shoal.data.time_column import (
    UNIT_SECONDS,
    Periods,
    TimeColumn,
    UncutError,
    periods,
    seconds_of,
    told,
)
from shoal.worlds.spec import Reader


def read_periods(reader: Reader, first: float, dated: bool) -> Periods:
    """``period``, ``origin`` and ``rounds_per_period``."""
    rounds = reader.whole("rounds_per_period", 1)
    try:
        found = periods(first, dated, reader.raw("period"), reader.raw("origin"), rounds)
    except UncutError as wrong:
        reader.bad(wrong.key, wrong.right)
    reader.raw("origin", told(found.origin) if dated else found.origin)  # written into the spec
    return found


def read_column(reader: Reader, data: Dataset) -> TimeColumn:
    """The data's times, which must be those of the column that is named."""
    named = reader.raw("column")
    if named is not None and not isinstance(named, str):
        reader.bad("column", "the name of the column that says when a row came")
    if data.times is None:
        if named is None:
            reader.bad("column", "the name of the column that says when a row came")
        raise UserError(f"column of {reader.what} is {named!r}, but data set {data.name!r} does not"
                        f" say when its rows came; take a table of your own.")  # fmt: skip
    if named not in (None, data.times.column):
        reader.bad("column", f"{data.times.column!r}, which says when rows of {data.name!r} came")
    return data.times


def read_moments(reader: Reader, times: TimeColumn) -> tuple[Periods, NDArray[np.float64]]:
    """How time is cut, and the moments of the training rows: numbers with a ``unit`` are counted
    from ``origin`` on."""
    unit: Any = reader.raw("unit")
    if unit is not None and times.dated:
        reader.bad("unit", f"left out, for column {times.column!r} has dates")
    moments = times.train
    if unit is None:
        return read_periods(reader, float(moments.min()), times.dated), moments
    seconds = UNIT_SECONDS[reader.choice("unit", tuple(UNIT_SECONDS))]
    zero = seconds_of(reader.raw("origin"))
    if zero is None:
        reader.bad("origin", f"the date of {times.column} 0, such as 2024-03-01")
    moments = zero + moments * seconds
    return read_periods(reader, zero, True), moments
