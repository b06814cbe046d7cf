"""Flights from small files in both forms, and the ferries that are drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from shoal import run
from shoal.api import Result
from shoal.core.errors import UserError
from shoal.data.sources import load
from shoal.data.time_column import seconds_of

ORIGINS = ["BOS", "ATL", "BOS", "EGE"] * 5  # 20 flights, one every 100 minutes
DELAYS = [16, 15, -3, 40] * 5


def flights(folder: Path, published: bool) -> None:
    minutes = np.arange(20) * 100
    when = np.datetime64("2001-01-01") + minutes.astype("timedelta64[m]")
    when = when.astype("datetime64[ms]")
    table = {
        "delay": np.array(DELAYS, np.int16),
        "distance": np.full(20, 500, np.int16),
        "origin": ORIGINS,
        "destination": ["ATL", "BOS"] * 10,
    }
    (folder / "flights").mkdir()
    # the published file is in no order
    order = np.random.default_rng(0).permutation(20) if published else np.arange(20)
    first = {"date": when} if published else {"minute": minutes.astype(np.int32)}
    name = "flights-3m.parquet" if published else "flights.parquet"
    pq.write_table(pa.table({**first, **table}).take(order), folder / "flights" / name)


@pytest.mark.parametrize("published", [False, True])
def test_flights(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                 published: bool) -> None:  # fmt: skip
    flights(tmp_path, published)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    data = load("flights")
    assert data.names == ("ATL", "BOS", "EGE") and data.times is not None
    rows = [i for i in range(20) if i % 10 != 9]
    assert data.times.train.tolist() == [100.0 * i for i in rows] and not data.times.dated
    assert data.group is not None
    assert [data.names[g] for g in data.group.tolist()] == [ORIGINS[i] for i in rows]
    assert data.train.y.tolist() == [int(DELAYS[i] > 15) for i in rows]
    x = data.train.x[rows.index(15)]  # minute 1,500: 1 o'clock on Tuesday, to Boston
    assert x.shape == (24 + 7 + 2 + 1,)
    assert np.flatnonzero(x[:-1].numpy()).tolist() == [1, 24 + 1, 24 + 7 + 1]
    assert float(x[-1]) == pytest.approx((np.log(500) - 6.3) / 0.8, rel=1e-6)


def test_some_of_the_flights(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flights(tmp_path, False)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    assert load("flights", airports=1).names == ("BOS",)
    half = load("flights", share=0.5, late=-5).times
    assert half is not None
    assert [*half.train.tolist(), *half.test.tolist()] == [100.0 * i for i in range(1, 20, 2)]
    for option, value in (("late", "much"), ("airports", 0), ("share", 0.0)):
        with pytest.raises(UserError, match=f"{option} of data set 'flights' is {value!r}"):
            load("flights", **{option: value})


def test_ferries_come_and_go_with_the_season() -> None:
    data = load("ferries")
    assert data.group is not None and data.times is not None and data.names is not None
    weeks = (data.times.train - (seconds_of("2024-01-01") or 0.0)) // (7 * 86400)
    found = {
        name: sorted(set(weeks[data.group.numpy() == number].astype(int).tolist()))
        for number, name in enumerate(data.names)
    }
    everything = list(range(26))
    assert found.pop("Dune End") == everything[10:]
    assert found.pop("Grey Sound") == everything[:15]
    assert found.pop("Heron Rock") == [w for w in everything if w not in (8, 9)]
    assert all(own == everything for own in found.values()) and len(found) == 5
    assert 0.35 < float(data.train.y.float().mean()) < 0.65
    assert load("ferries", seed=1).train.x[0].tolist() != data.train.x[0].tolist()


# ---- nothing of later periods -------------------------------------------------------------------
def trips(folder: Path, change: Mapping[int, tuple[str, ...]] | None = None) -> Path:
    """Two members, ten days a period, four periods; ``change`` puts other cells into some rows."""
    draw = np.random.default_rng(3)
    rows = []
    for row in range(120):
        day = np.datetime64("2024-01-01") + row // 3
        wind, load = draw.normal(20 + row // 30, 4), draw.normal(1e4, 900)
        note = " ".join(draw.choice(["calm", "storm", "fog", "late"], 3).tolist())
        cells = (f"{wind:.3f}", "" if row % 7 == 5 else f"{load:.1f}", note, f"{3 * wind:.2f}")
        rows.append([str(day), "AB"[row % 2], *(change or {}).get(row, cells), str(row % 10 == 9)])
    path = folder / f"trips{len(change or {})}.csv"
    head = "day,harbour,wind,load,note,minutes,test"
    path.write_text("\n".join([head, *(",".join(cells) for cells in rows)]) + "\n")
    return path


def played(path: Path, format: str | None = None, **world: Any) -> Result:
    data = {"path": str(path), "y": "minutes", "client": "harbour", "test": "test",
            "target": "number",
            "date": {"column": "day", "features": ["weekday", "elapsed"], "format": format},
            "text": {"column": "note", "vocabulary": 8}}  # fmt: skip
    return run(
        data=data,
        model="linear",
        local={"lr": 0.05},
        world={"name": "dated", "column": "day", "period": "10 days", **world},
    )


def test_a_later_value_changes_nothing_before_it(tmp_path: Path) -> None:
    other = {row: ("-9000.0", "7e7", "sleet sleet storm", "12345.0") for row in range(90, 120)}
    one, two = played(trips(tmp_path)), played(trips(tmp_path, other))
    rounds = len(one.rounds)
    assert rounds == 3  # the last period, in which the rows differ, is only scored on
    seen = [result.plan.world.pool.x[:81] for result in (one, two)]  # of three periods
    assert torch.equal(*seen)
    before = [[r["loss"] for r in result.rounds[:-1]] for result in (one, two)]
    assert before[0] == before[1] and all(loss is not None for loss in before[0])
    assert all(torch.equal(one.model[k], two.model[k]) for k in one.model)
    assert one.rounds[-1]["loss"] != two.rounds[-1]["loss"]  # so the rows do count when they come


def test_scales_are_those_of_the_first_period(tmp_path: Path) -> None:
    result = played(trips(tmp_path))
    first = result.plan.world.pool.x[:27]  # 30 rows, each tenth for testing
    numbers = first[:, :2]
    assert float(numbers.mean(0).abs().max()) < 1e-5
    assert float((numbers[:, 0].std(correction=0) - 1).abs()) < 1e-4  # the other has means in gaps
    assert any("27 training rows of the first period" in note for note in result.notes)


def test_a_column_that_begins_later_is_refused(tmp_path: Path) -> None:
    rows = {row: ("1.5", "", "calm", "3.0") for row in range(30)}
    with pytest.raises(UserError, match="'load' of .* has no value in a training row of the first"):
        played(trips(tmp_path, rows))


def test_a_calendar_reads_dates_as_data_date_says(tmp_path: Path) -> None:
    path = trips(tmp_path)
    other = tmp_path / "other.csv"
    days = re.sub(r"(2024)-(\d\d)-(\d\d)", r"\3.\2.\1", path.read_text())
    other.write_text(days)
    assert "01.01.2024" in days
    one, two = (played(p, format=f) for p, f in ((path, None), (other, "%d.%m.%Y")))
    assert [r["loss"] for r in one.rounds] == [r["loss"] for r in two.rounds]
    with pytest.raises(UserError, match="'01.01.2024' in row 1, which is no date"):
        played(other)
