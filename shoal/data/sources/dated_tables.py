"""Flights and ferries: tables whose rows have dates, and whose members have names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.rng import Purpose, generator
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About, Remote, locate
from shoal.data.time_column import TimeColumn, seconds_of

EVERY = 10  # each tenth row is for testing, so that both parts span all of the time
MINUTES_A_DAY = 24 * 60
WORDS = 30  # destinations that are told apart
Codes = NDArray[np.int64]

FLIGHTS = About(
    "flights", "Departures from US airports, January to June 2001", "3,000,000", 2, (62,),
    licence="public domain",
    reference="US Bureau of Transportation Statistics, on-time performance, by vega-datasets",
    forms={"half": ("flights.parquet",)},
    remotes=(Remote(
        "https://raw.githubusercontent.com/vega/vega-datasets/v3.2.1/data/flights-3m.parquet",
        "flights-3m.parquet", git="9c4e0b480a1a60954a7e5c6bcc43e1c91a73caaa", size=13_493_022),),
    compact="1,500,000, a random half",
)  # fmt: skip
FERRIES = About(
    "ferries", "Ferries that leave late, made up", "about 3,400", 2, (5,), licence="drawn here",
)  # fmt: skip


@source("flights", FLIGHTS)
def flights(*, late: int = 15, airports: int | None = None, share: float = 1.0) -> Dataset:
    """Does a flight leave (1) more than so many minutes late? A client is an airport.

    Inputs: the hour and the weekday of departure as planned and the 30 most frequent destinations,
    each a column of 0 and 1, and the logarithm of the distance. Rows are in the order of time;
    column ``minute`` counts the minutes since 2001-01-01. Each tenth row is for testing.

    Parameters
    ----------
    late: minutes; a departure that is later is of class 1.
    airports: only the airports with most departures, so many of them.
    share: the share of departures that is kept, evenly spaced in time.
    """
    if isinstance(late, bool) or not isinstance(late, int):
        raise UserError(f"late of data set 'flights' is {late!r}; it must be a whole number of "
                        "minutes.")  # fmt: skip
    if airports is not None and (isinstance(airports, bool) or airports < 1):
        raise UserError(f"airports of data set 'flights' is {airports!r}; it must be a whole "
                        "number of at least 1, or left out.")  # fmt: skip
    if not 0.0 < share <= 1.0:
        raise UserError(f"share of data set 'flights' is {share!r}; it must be above 0 and at most "
                        "1.")  # fmt: skip
    found = locate(FLIGHTS)
    name = "flights.parquet" if found.form == "half" else "flights-3m.parquet"
    minute, delay, distance, origin, destination = _departures(found / name)
    busiest = _most_frequent(origin, airports)
    kept = np.isin(origin, busiest)
    places = np.flatnonzero(kept)
    number = np.arange(len(places) + 1) * share
    places = places[np.floor(number[1:]) > np.floor(number[:-1])]
    minute, where = minute[places], destination[places]
    x = np.concatenate(
        [
            _ones(minute // 60 % 24, np.arange(24)),
            _ones(minute // MINUTES_A_DAY % 7, np.arange(7)),
            _ones(where, _most_frequent(destination, WORDS)),
            (np.log(np.maximum(distance[places], 1))[:, None] - 6.3) / 0.8,
        ],
        1,
        dtype=np.float32,
    )
    y = delay[places] > late
    return _dated("flights", x, y, origin[places], minute.astype(np.float64), "minute", False)


def _departures(path: Any) -> tuple[Codes, Codes, Codes, NDArray[Any], NDArray[Any]]:
    """Minute, delay, distance, origin and destination of every flight, in the order of time."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    if "date" in table.column_names:  # the file as it is published
        when = table["date"].to_numpy().astype("datetime64[m]")
        minute = (when - np.datetime64("2001-01-01", "m")).astype(np.int64)
    else:
        minute = table["minute"].to_numpy().astype(np.int64)
    order = np.argsort(minute, kind="stable")
    numbers = [table[name].to_numpy().astype(np.int64)[order] for name in ("delay", "distance")]
    codes = [np.array(table[name].to_pylist())[order] for name in ("origin", "destination")]
    return minute[order], numbers[0], numbers[1], codes[0], codes[1]


def _most_frequent(values: NDArray[Any], count: int | None) -> NDArray[Any]:
    """The most frequent values, in the order of their names."""
    names, times = np.unique(values, return_counts=True)
    return np.sort(names[np.argsort(-times, kind="stable")[:count]])


def _ones(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.float32]:
    """A column for every known value, 1 where the row has it."""
    found: NDArray[np.float32] = (values[:, None] == known[None]).astype(np.float32)
    return found


@source("ferries", FERRIES)
def ferries(*, seed: int = 0) -> Dataset:
    """Does a ferry leave late (1)? Eight harbours over 26 weeks, drawn here.

    Inputs: wind, passengers, hour of the day, length of the crossing, weekend. In winter wind makes
    ferries late; from week 11 to 15 that gives way to passengers, and with the new timetable of
    week 18 evenings take the place of mornings. Dune End opens in week 10, Grey Sound closes after
    week 14, Heron Rock is repaired in weeks 8 and 9. Column ``day`` has the dates; each tenth row
    is for testing.

    >>> data = ferries()
    >>> data.names[3], data.times.column, data.shape
    ('Dune End', 'day', (5,))
    """
    names = ("Amber Bay", "Birch Point", "Cold Quay", "Dune End", "East Quay", "Fern Isle",
             "Grey Sound", "Heron Rock")  # fmt: skip
    draw = generator(seed, Purpose.DATA, 12)
    start = float(seconds_of("2024-01-01") or 0.0)
    x, y, owner, days = [], [], [], []
    for day in range(7 * 26):
        week, summer = day // 7, float(np.clip((day / 7 - 11) / 4, 0.0, 1.0))
        open_now = {3: week >= 10, 6: week <= 14, 7: week not in (8, 9)}
        for harbour in range(len(names)):
            if not open_now.get(harbour, True):
                continue
            for _ in range(2 + harbour % 2):
                wind, passengers, hour = draw.normal(0.5 - summer), draw.normal(), draw.uniform()
                length = 0.3 * (harbour - 3.5) + 0.1 * draw.normal()
                drive = (1 - summer) * 2.0 * wind + summer * 2.0 * passengers
                drive += (3.0 if week >= 18 else -3.0) * (hour - 0.5) + 0.5 * length
                x.append((wind, passengers, 2 * hour - 1, length, float(day % 7 >= 5)))
                y.append(draw.uniform() < 1 / (1 + np.exp(-1.5 * drive)))
                owner.append(names[harbour])
                days.append(start + 86400.0 * day)
    return _dated("ferries", np.array(x, np.float32), np.array(y), np.array(owner),
                  np.array(days), "day", True)  # fmt: skip


def _dated(
    name: str,
    x: NDArray[np.float32],
    y: NDArray[Any],
    owner: NDArray[Any],
    times: NDArray[np.float64],
    column: str,
    dated: bool,
) -> Dataset:
    """Rows in the order of time."""
    names, group = np.unique(owner, return_inverse=True)
    test = np.arange(len(y)) % EVERY == EVERY - 1
    parts = [torch.from_numpy(np.flatnonzero(rows)) for rows in (~test, test)]
    rows, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    train, held = (Pool(rows[at], labels[at]) for at in parts)
    groups = [torch.from_numpy(group.reshape(-1).astype(np.int64))[at] for at in parts]
    when = TimeColumn(column, times[~test], times[test], dated)
    return Dataset(name, train, held, 2, (x.shape[1],), groups[0], groups[1],
                   names=tuple(names.tolist()), times=when)  # fmt: skip
