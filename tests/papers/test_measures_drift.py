"""Figures around drifts and tasks, on records written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.papers.measures import RunFiles, measured
from shoal.papers.measures.changes import in_means
from shoal.runs.directory import RunDir


def written(path: Path, records: list[dict[str, Any]], config: str = "seed: 0\n") -> RunFiles:
    run = RunDir(path)
    path.mkdir()
    run.rounds.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    run.config.write_text(config, encoding="utf-8")
    return RunFiles(path)


def drifted(path: Path) -> RunFiles:
    """100 rounds at 90%, a drift to 10% that is back after 30, local models back after 10."""
    records = []
    for n in range(200):
        after = n - 100
        share = 0.9 if after < 0 or after >= 30 else 0.1
        local = 0.9 if after < 0 or after >= 10 else 0.5
        record: dict[str, Any] = {
            "round": n, "accuracy": share, "epochs": 20 if after < 0 else 30,
            "cohort": list(range(10)),
            "shift": {"kinds": ["concept"]} if after == 0 else None, "effective_rate": float(n),
        }  # fmt: skip
        if n % 10 == 0:
            record["local"] = {"accuracy": local, "received": share, "std": 0.25}
        records.append(record)
    return written(path, records)


def test_dips_recoveries_and_levels(tmp_path: Path) -> None:
    run = drifted(tmp_path / "run")
    assert measured({"lowest": {"score": "local"}}, run) == pytest.approx(50.0)
    assert measured({"lowest": {"score": "global", "mean": 10}}, run) == pytest.approx(10.0)
    assert measured({"lowest": {"score": "global", "mean": 60}}, run) == pytest.approx(50.0)
    assert measured({"recovery": {"score": "local", "points": 1}}, run) == 10.0
    assert measured({"recovery": {"score": "global", "points": 2}}, run) == 30.0
    assert measured({"level": {"score": "global", "before": True}}, run) == pytest.approx(90.0)
    assert measured({"lowest": {"drift": 1}}, run) is None  # there is no second drift
    assert measured("spread_of_clients", run) == pytest.approx(25.0)


def test_a_curve_that_never_comes_back_takes_all_rounds(tmp_path: Path) -> None:
    records = [
        {"round": n, "accuracy": 0.5, "shift": {"kinds": ["concept"]} if n == 10 else None,
         "local": {"accuracy": 0.9 if n % 2 else 0.1, "received": 0.0, "std": 0.0}}
        for n in range(110)
    ]  # fmt: skip
    run = written(tmp_path / "run", records)
    assert measured({"recovery": {"score": "local", "points": 1}}, run) == 99.0


def test_work_and_internals_around_the_drift(tmp_path: Path) -> None:
    run = drifted(tmp_path / "run")
    assert measured("epochs_spent", run) == 3000.0
    assert measured({"mean_epochs": {"first": -10, "rounds": 20, "after": True}}, run) == 2.5
    found = measured({"internal": {"key": "effective_rate", "first": -2, "rounds": 2}}, run)
    assert found == pytest.approx(98.5)


def test_blocks_are_counted_from_the_first_point() -> None:
    assert in_means([(5, 1.0), (6, 3.0), (7, 8.0)], 2) == [(5, 2.0), (7, 8.0)]


def staged(path: Path) -> RunFiles:
    first, second = [0.5, 0.8, 0.7], [(0.6, 0.2), (0.5, 0.4), (0.4, 0.6)]
    rows = [{"task 0": a} for a in first] + [{"task 0": a, "task 1": b} for a, b in second]
    records = [
        {"round": n, "task": int(n >= 3), "tasks": tasks, "accuracy": 0.5, "shift": None,
         "bytes_up": 10, "bytes_down": 30, "seconds": 2.0, "seconds_evaluating": 0.5,
         "largest_update": 1.0, "anchor_distance": 1.5}
        for n, tasks in enumerate(rows)
    ]  # fmt: skip
    return written(path, records, "method: [{special: {lam: 0.25}}]\n")


def test_tasks_are_read_while_they_are_learnt_and_after(tmp_path: Path) -> None:
    run = staged(tmp_path / "run")
    assert measured({"own_task": {"task": 0}}, run) == pytest.approx(40.0)
    assert measured({"own_task": {"task": -1, "times": 1}}, run) == pytest.approx(0.6)
    assert measured("learnt", run) == pytest.approx(65.0)
    assert measured("rounds_to_best", run) == 2 + 3
    call = {"while_learning": {"task": 0, "during": 1, "first": 0, "rounds": 2}}
    assert measured(call, run) == pytest.approx(55.0)
    assert measured("both_tasks", run) == pytest.approx(50.0)
    assert measured("bytes_a_round", run) == 40.0
    assert measured("seconds_a_round", run) == pytest.approx(1.5)


def test_the_anchor_bound_is_the_rate_times_the_largest_update_over_lambda(tmp_path: Path) -> None:
    assert measured("anchor_bound", staged(tmp_path / "run")) == pytest.approx(
        1.5 / (1.0 / 2 / 0.25)
    )


def test_rates_slopes_and_rounds_to_a_level(tmp_path: Path) -> None:
    records = [
        {"round": n, "accuracy": 0.1 * n, "divergence": 4.0 / (n + 1), "mean_client_rate": 0.02 * n,
         "shift": None}
        for n in range(8)
    ]  # fmt: skip
    run = written(tmp_path / "run", records, "local: {lr: 0.3}\n")
    assert measured("mean_rate", run) == pytest.approx(0.07)
    assert measured({"log_slope": {"key": "divergence"}}, run) == pytest.approx(-1.0)
    assert measured({"rounds_to": {"level": 45.0}}, run) == 6.0
    assert measured({"rounds_to": {"level": 99.0}}, run) == 9.0
    assert measured({"mean_of": {"key": "divergence", "root": True}}, run) is not None
    assert measured({"last_of": {"key": "divergence", "last": 2}}, run) == pytest.approx(15 / 28)
    plain = written(tmp_path / "plain", [{"round": 0, "accuracy": 0.5}], "local: {lr: 0.3}\n")
    assert measured("mean_rate", plain) == 0.3
