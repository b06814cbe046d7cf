"""Worlds with a calendar: tables of members, dated rows, traces; and what is refused."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.sources import Dataset
from shoal.data.time_column import Periods, TimeColumn, seconds_of
from shoal.worlds import build, load_saved
from shoal.worlds.periods import read_periods
from shoal.worlds.spec import Reader
from shoal.worlds.world import Composed

NAMES = ("Bath", "Hull", "Leeds")
# Day and member of every training row: Bath all the time, Hull from day 9 to 26 with a gap of more
# than a week, Leeds until day 12. Weeks begin on days 0, 7, 14, 21, 28.
ROWS = [
    (0, 0),
    (1, 2),
    (6, 2),
    (7, 0),
    (9, 1),
    (12, 2),
    (15, 0),
    (16, 0),
    (21, 0),
    (26, 1),
    (30, 0),
]
FIRST = date(2024, 1, 1)


def visits(numbers: bool = False) -> Dataset:
    """The rows above, each with its number as the feature."""
    days, members = np.array(ROWS).T
    seconds = np.array([float(seconds_of(FIRST + timedelta(int(d))) or 0) for d in days])
    times = days.astype(np.float64) if numbers else seconds
    x = torch.arange(len(ROWS), dtype=torch.float32)[:, None]
    pool, test = Pool(x, torch.arange(len(ROWS)) % 2), Pool(x[:2], torch.tensor([0, 1]))
    return Dataset(
        "visits", pool, test, 2, (1,), torch.from_numpy(members), torch.tensor([0, 1]),
        names=NAMES, times=TimeColumn("day", times, times[:2], not numbers),
    )  # fmt: skip


def dated(**more: Any) -> Composed:
    return build({"name": "dated", "column": "day", "period": "week", **more}, visits(), seed=0)


def days(world: Composed, member: int, round: int) -> list[int]:
    return [ROWS[row][0] for row in world.train(member, round).rows.tolist()]


def test_members_come_with_their_first_row_and_leave_after_their_last() -> None:
    world = dated()
    assert (world.rounds, world.names) == (4, NAMES)  # the fifth week is scored only
    assert [list(world.membership.present[world.membership.session(r)]) for r in range(4)] == [
        [0, 2], [0, 1, 2], [0, 1], [0, 1],
    ]  # fmt: skip
    # Hull has no row in the third week: it has not left, but cannot be reached
    assert [list(world.at(r).members) for r in range(4)] == [[0, 2], [0, 1, 2], [0], [0, 1]]
    told = [s.note for s in world.shifts.values()]
    assert told == ["session 1: Hull came; 3 here", "session 2: Leeds left; 2 here"]
    assert [world.when(r) for r in range(4)] == [
        "2024-01-01", "2024-01-08", "2024-01-15", "2024-01-22",
    ]  # fmt: skip


@pytest.mark.parametrize(("window", "weeks"), [(1, 1), (2, 2), ("all", 99)])
def test_a_member_holds_the_rows_of_its_last_weeks(window: int | str, weeks: int) -> None:
    world = dated(window=window, rounds_per_period=3)
    assert world.rounds == 12
    largest = 0
    for round in range(12):
        now = round // 3
        for member in world.at(round).members:
            wanted = [d for d, m in ROWS if m == member and now - weeks < d // 7 <= now]
            assert days(world, member, round) == wanted != []
            largest = max(largest, len(wanted))
    assert world.pad == largest
    assert world.block(0, 0) == world.block(0, 2) != world.block(0, 3)


def test_every_row_is_scored_before_it_is_trained_on() -> None:
    world = dated(rounds_per_period=2, window="all")
    trained: set[int] = set()
    scored: list[int] = []
    for round in range(world.rounds):
        for member in world.at(round).members:
            trained |= set(world.train(member, round).rows.tolist())
        ahead = world.tests(round)["active"].rows.tolist()
        assert not trained & set(ahead)
        assert [ROWS[r][0] // 7 for r in ahead] == [round // 2 + 1] * len(ahead)
        own = [world.own(m, round) for m in range(3)]
        assert sorted(r for o in own if o is not None for r in o.rows.tolist()) == ahead
        scored += ahead if round % 2 else []
    assert sorted(scored) == [i for i, (day, _) in enumerate(ROWS) if day >= 7]


def test_numbers_of_days_are_dates_with_a_unit_and_an_origin() -> None:
    plain = build({"name": "dated", "period": 7}, visits(numbers=True), seed=0)
    assert [plain.when(r) for r in range(4)] == ["0", "7", "14", "21"]
    spec = {"name": "dated", "unit": "day", "origin": FIRST, "period": "week"}
    counted = build(spec, visits(numbers=True), seed=0)
    other = dated()
    for round in range(4):
        assert counted.when(round) == other.when(round)
        assert list(counted.at(round).members) == list(other.at(round).members)
        assert days(counted, 0, round) == days(plain, 0, round) == days(other, 0, round)


def test_months_are_months() -> None:
    reader = Reader({"period": "month"}, "world", ("origin", "period", "rounds_per_period"))
    periods = read_periods(reader, float(seconds_of("2024-01-17") or 0), True)
    moments = ["2024-01-31 23:59", "2024-02-01", "2024-02-29", "2024-03-01", "2025-01-01"]
    found = [int(periods.of(float(seconds_of(m) or 0))) for m in moments]
    assert found == [0, 1, 1, 2, 12]
    assert [periods.name(p) for p in (0, 2, 12)] == ["2024-01-01", "2024-03-01", "2025-01-01"]


def test_rounds_of_a_period_are_spread_over_it() -> None:
    periods = Periods(100.0, 40.0, rounds=4)
    assert [periods.moment(r) for r in (0, 1, 4, 7)] == [100.0, 110.0, 140.0, 170.0]


# ---- tables ----
TABLE = "member,from,to\nLeeds,,5\nBath,2,\nHull,4,4\n"


def static(members: object, **more: Any) -> Composed:
    return build({"name": "table", "members": members, **more}, visits(), seed=0)


def present(world: Composed) -> list[list[int]]:
    return [list(world.at(r).members) for r in range(world.rounds)]


def test_a_table_says_who_is_here_in_which_round(tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text(TABLE)
    world = static(str(path), rounds=7)
    assert present(world) == [[2], [2], [0, 2], [0, 2], [0, 1, 2], [0, 2], [0]]
    assert world.membership.starts == (0, 2, 4, 5, 6)
    assert world.shifts[4].note == "session 2: Hull came; 3 here"
    listed = [{"member": "Leeds", "to": 5}, {"member": "Bath", "from": 2},
              {"member": "Hull", "from": 4, "to": 4}]  # fmt: skip
    assert present(static(listed, rounds=7)) == present(world)


def test_dates_of_a_table_become_rounds() -> None:
    table = [{"member": "Leeds", "from": "2024-01-01", "to": "2024-01-14"},
             {"member": "Bath", "from": date(2024, 1, 10), "to": "2024-01-28"}]  # fmt: skip
    world = static(table, period="week", rounds_per_period=2)
    assert present(world) == [[2], [2], [0, 2], [0, 2], [0], [0], [0], [0]]
    assert world.when(3) == "2024-01-08"
    assert world.notes == ("world.members: never here, by members and the 8 rounds: Hull",)


def test_a_table_may_cut_what_the_dates_of_rows_say() -> None:
    world = dated(members=[{"member": n, "to": "2024-01-20"} for n in ("Hull", "Leeds")]
                          + [{"member": "Bath"}])  # fmt: skip
    assert present(world) == [[0, 2], [0, 1, 2], [0], [0]]


def test_members_without_names_are_numbers() -> None:
    table = [{"member": 0, "to": 1}, {"member": 2}]
    world = static(table, partition="iid", rounds=3)
    assert world.names is None and present(world) == [[0, 2], [0, 2], [2]]


def test_saved_worlds_come_back_with_dates_and_names() -> None:
    for world in (dated(rounds_per_period=2), static([{"member": n} for n in NAMES], rounds=3)):
        again = load_saved(world.saved(), visits())
        assert again.saved() == world.saved() and again.names == NAMES
    older = {k: v for k, v in world.saved().items() if k != "names"}
    assert load_saved(older, visits()).names == NAMES


# ---- traces ----
def trace(tmp_path: Path, text: str, **more: Any) -> dict[str, Any]:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return {"name": "trace", "path": str(path), **more}


def test_a_trace_in_a_table_names_members(tmp_path: Path) -> None:
    text = "member,from,to\nBath,0,1200\nBath,2400,\nHull,,\nLeeds,600,1000\n"
    everybody = [{"member": n} for n in NAMES]
    world = static(everybody, rounds=5, available=trace(tmp_path, text))  # a round is 600 seconds
    assert present(world) == [[0, 1], [0, 1, 2], [0, 1], [1], [0, 1]]
    assert not world.shifts
    told = static(everybody, rounds=5, available=trace(tmp_path, text, sessions=True))
    assert present(told) == present(world)
    assert told.membership.starts == (0, 1, 2, 3, 4)
    assert told.shifts[3].note == "session 3: Bath left; 1 here"


def test_a_trace_starts_sessions_in_a_dated_world_too(tmp_path: Path) -> None:
    text = "member,from,to\nBath,,\nHull,,\nLeeds,,500\n"  # Leeds' rows would last until round 1
    world = dated(available=trace(tmp_path, text, sessions=True))
    assert [s.note for s in world.shifts.values()] == ["session 1: Hull came; Leeds left; 2 here"]
    assert present(world) == [[0, 2], [0, 1], [0], [0, 1]]  # without a row Hull has not left


def test_a_trace_may_have_dates(tmp_path: Path) -> None:
    text = "member,from,to\nBath,,\nHull,2024-01-22,\nLeeds,,2024-01-07\n"
    assert present(dated(available=trace(tmp_path, text))) == [[0, 2], [0], [0], [0, 1]]


# ---- what is refused ----
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"column": "dya"}, ("column", "'dya'", "'day'")),
        ({"period": "fortnight"}, ("period", "'fortnight'", "14 days")),
        ({"period": "3 days"}, ("no row of 'day'", "2024-01-04 to 2024-01-07", "longer period")),
        ({"period": "year"}, ("period", "2 to 100,000 periods, not 1")),
        ({"origin": "2024-01-05"}, ("origin", "2 rows are earlier")),
        ({"origin": "soon"}, ("origin", "'soon'", "a date")),
        ({"period": "month", "origin": "2024-01-02"}, ("origin", "first day of a month")),
        ({"unit": "day"}, ("unit", "'day' has dates")),
        ({"rounds": 5}, ("rounds", "at most 4")),
        ({"window": 0}, ("window", "at least 1")),
        ({"lazy": True}, ("lazy", "false")),
        ({"stream": True}, ("has no key 'stream'",)),
        ({"members": [{"member": "Bath", "from": "2024-02-01", "to": "2024-01-01"}]},
         ("members, row 1", "Bath", "from must not be after to")),
    ],
)  # fmt: skip
def test_errors_of_dated_worlds(change: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        dated(**change)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("member,from,to\nBath,5,3\n", ("row 1", "Bath", "from 5, to 3")),
        ("member,from,to\nBath,soon,3\n", ("row 1", "from is 'soon'", "2024-03-01")),
        ("member,from,to\nBth,0,3\n", ("row 1", "no member 'Bth'", "'Bath'")),
        ("member,from,to\nBath,0,3\nHull,2024-01-01,\n", ("row 2", "a date", "a number")),
        ("member,from,to\nBath,0.5,3\n", ("row 1", "whole number")),
        ("member,from,to\n,0,3\n", ("row 1", "no member")),
        ("member,from,to\n", ("no rows",)),
        ("member,from,until\nBath,0,3\n", ("column 'until'",)),
        ("name,from,to\nBath,0,3\n", ("column 'name'",)),
        ("member,from,to\nBath,0,3,4\n", ("row 1", "more columns")),
        ("member,from,to\nBath,1,3\n", ("no member is there in round 0",)),
    ],
)
def test_errors_of_member_tables(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "members.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        static(str(path), rounds=4)
    assert all(word in str(error.value) for word in words), error.value


def test_errors_of_traces(tmp_path: Path) -> None:
    everybody = [{"member": n} for n in NAMES]
    for text, words in (
        ("member,from,to\nBath,,\nHull,,\n", ("no row for member Leeds",)),
        ("member,from,to\nBath,2024-01-01,\n", ("has dates", "no calendar")),
    ):
        with pytest.raises(UserError) as error:
            static(everybody, rounds=2, available=trace(tmp_path, text))
        assert all(word in str(error.value) for word in words), error.value
