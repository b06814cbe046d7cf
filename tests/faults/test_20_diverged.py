"""A run that has diverged keeps its records and ends with exit code 5; others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.cli import call
from shoal.config import from_mapping
from shoal.config.build import build
from shoal.runs.directory import diverged
from shoal.runs.run import initial_loss

QUADRATIC: dict[str, Any] = {
    "problem": {"a": [1.0, 2.0], "b": [1.0, -1.0], "n": [1, 1], "w0": [0.0], "rounds": 40},
    "method": "fedavg",
    "engine": "loop",
    "local": {"lr": 3.0},  # the loss grows by a factor of about 12 a round, and stays finite
}


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]


def test_a_loss_out_of_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "a"
    assert call(["run", str(written(tmp_path, QUADRATIC)), "-o", str(run)]) == 5
    said = capsys.readouterr().err.splitlines()[-1]
    assert "above guard.diverged (1e+06) times the initial 1" in said
    assert "try a smaller local.lr" in said
    losses = [record["loss"] for record in records(run)]
    assert initial_loss(build(from_mapping(QUADRATIC))) == pytest.approx(0.75)
    assert all(loss <= 1e6 for loss in losses[:-1]) and losses[-1] > 1e6
    assert len(losses) < 40 and diverged(run) == len(losses) - 1
    assert not (run / "summary.json").exists()
    before = (run / "rounds.jsonl").read_bytes()
    assert call(["resume", str(run)]) == 5
    assert (run / "rounds.jsonl").read_bytes() == before


def test_it_may_be_allowed(tmp_path: Path) -> None:
    path = written(tmp_path, {**QUADRATIC, "guard": {"diverged": None}})
    assert call(["run", str(path), "-o", str(tmp_path / "a")]) == 0
    assert len(records(tmp_path / "a")) == 40


def test_uploads_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {**QUADRATIC, "local": {"lr": 1e300, "epochs": 3}})
    assert call(["run", str(path), "-o", str(tmp_path / "a")]) == 5
    assert "it has diverged and would again" in capsys.readouterr().err
    assert diverged(tmp_path / "a") == 0


def test_a_sweep_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, QUADRATIC)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("base: config.yaml\ngrid:\n  local.lr: {fast: 3.0, slow: 0.1}\n")
    out = tmp_path / "out"
    for _ in range(2):  # the second time, nothing is left to play
        assert call(["sweep", str(sweep), "-o", str(out), "-j", "1"]) == 4
        said = capsys.readouterr().err
        assert "shoal: fast: round" in said and "it has diverged" in said
        assert (out / "slow" / "summary.json").exists() and records(out / "fast")


def test_losses_that_jump_at_a_drift_are_no_divergence() -> None:
    """What archived runs that still learn came to: up to 40 times the first loss at a shift, 8,000
    times with FedDC on the synthetic data set."""
    assert build(from_mapping({"problem": "quadratic"})).config.guard.diverged == 1e6
