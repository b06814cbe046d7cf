"""A run over a table with sites and dates: names and dates in all it leaves, and its scores."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from small_runs import content, rounds

from shoal.config import from_mapping, load_run
from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.reports.page_data import read_page
from shoal.rounds.orders import check_rounds
from shoal.runs.run import DurableRun

SITES = {"Bath": range(42), "Hull": range(9, 42), "Leeds": range(20)}


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Six weeks, two rows a day and site; what the answer depends on turns round after day 20."""
    draw, path = np.random.default_rng(0), tmp_path / "visits.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["day", "site", "a", "b", "answer", "part"])
        for day in range(42):
            for site in (s for s, days in SITES.items() if day in days):
                for turn in range(2):
                    a, b = draw.normal(size=2).round(4)
                    answer = "yes" if (a if day < 21 else -a) + b > 0 else "no"
                    when = (date(2024, 1, 1) + timedelta(day)).isoformat()
                    out.writerow([when, site, a, b, answer, int(day == 0 and turn == 0)])
    return path


def config(visits: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": {
            "path": str(visits),
            "y": "answer",
            "client": "site",
            "test": "part",
            "normalize": "none",
        },
        "world": {"name": "dated", "column": "day", "period": "week", "rounds_per_period": 2},
        "model": {"name": "mlp", "hidden": []},
        "checkpoint": {"every": 3},
        **more,
    }


def played(directory: Path, values: dict[str, Any], stop: int | None = None) -> Path:
    run = DurableRun.create(directory, from_mapping(values))

    def watch(record: dict[str, Any], _: int) -> None:
        if record["round"] == stop:
            raise KeyboardInterrupt

    try:
        run.play(watch)
    except KeyboardInterrupt:
        DurableRun.resume(directory).play()
    return directory


def test_names_and_dates_are_everywhere(visits: Path, tmp_path: Path) -> None:
    found = played(tmp_path / "run", config(visits))
    records = rounds(found)
    assert [r["date"] for r in records[::2]] == [
        "2024-01-01", "2024-01-08", "2024-01-15", "2024-01-22", "2024-01-29",
    ]  # fmt: skip
    assert [r["cohort_names"] for r in records[::2]] == [
        ["Bath", "Leeds"], ["Bath", "Hull", "Leeds"], ["Bath", "Hull", "Leeds"],
        ["Bath", "Hull"], ["Bath", "Hull"],
    ]  # fmt: skip
    table = pq.read_table(found / "clients.parquet").to_pylist()
    assert {(row["client"], row["name"]) for row in table} == {
        (0, "Bath"), (1, "Hull"), (2, "Leeds"),
    }  # fmt: skip
    world = json.loads((found / "world.json").read_text())
    assert world["names"] == list(SITES)
    assert world["calendar"]["begins"] == [r["date"] for r in records[::2]]
    page = read_page(found)
    assert page["names"] == list(SITES)
    assert page["timeline"]["dates"] == ["2024-01-01", "2024-01-08", "2024-01-22"]
    assert [s["note"] for s in page["shifts"]] == [
        "2024-01-08: session 1: Hull came; 3 here", "2024-01-22: session 2: Leeds left; 2 here",
    ]  # fmt: skip


def test_scores_are_of_the_week_to_come(visits: Path, tmp_path: Path) -> None:
    """The last record, by plain torch: overall and site by site."""
    found = played(tmp_path / "run", config(visits))
    tensors = load_file(found / "model.safetensors")
    weight, bias = tensors.values() if tensors[next(iter(tensors))].dim() == 2 else (
        *reversed(tensors.values()),)  # fmt: skip
    right: dict[str, list[bool]] = {}
    for row in csv.DictReader(visits.open()):
        if row["day"] >= "2024-02-05":
            x = torch.tensor([float(row["a"]), float(row["b"])])
            guess = ("no", "yes")[int((weight @ x + bias).argmax())]
            right.setdefault(row["site"], []).append(guess == row["answer"])
    every = [hit for hits in right.values() for hit in hits]
    assert len(every) == 28
    assert rounds(found)[-1]["accuracy"] == pytest.approx(np.mean(every), abs=1e-9)
    table = pq.read_table(found / "clients.parquet").to_pylist()
    last = {row["name"]: row["accuracy"] for row in table if row["round"] == 9}
    assert last == pytest.approx({site: np.mean(hits) for site, hits in right.items()}, abs=1e-9)


def test_a_dated_run_is_resumed_to_the_same_bits(visits: Path, tmp_path: Path) -> None:
    whole = played(tmp_path / "whole", config(visits))
    assert content(played(tmp_path / "cut", config(visits), stop=4)) == content(whole)


def test_engines_agree_in_a_dated_world(visits: Path, tmp_path: Path) -> None:
    found = [
        rounds(played(tmp_path / engine, config(visits, engine=engine)))
        for engine in ("loop", "stacked")
    ]
    for one, other in zip(*found, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["cohort_names"] == other["cohort_names"]


def test_a_config_that_was_written_runs_again(visits: Path, tmp_path: Path) -> None:
    first = played(tmp_path / "run", config(visits))
    again = load_run(first / "config.yaml")
    DurableRun.create(tmp_path / "again", again).play()
    assert rounds(tmp_path / "again") == rounds(first)
    assert "calendar" not in again.data.options


def test_another_date_column_is_another_run(visits: Path, tmp_path: Path) -> None:
    run = DurableRun.create(tmp_path / "run", from_mapping(config(visits)))
    run.close()
    moved = visits.read_text().replace("2024-01-03", "2024-01-09")
    visits.write_text(moved)
    with pytest.raises(UserError, match="the world"):
        DurableRun.resume(tmp_path / "run")


def test_members_are_called_by_name_in_complaints(visits: Path) -> None:
    # 13 rows in the first week (one is for testing): the last batch has one
    settings = build(from_mapping(config(visits, local={"batch": 12}))).settings
    with pytest.raises(UserError, match="client Bath has 13 rows in round 0"):
        check_rounds(replace(settings, lone_layer="BatchNorm1d"))
