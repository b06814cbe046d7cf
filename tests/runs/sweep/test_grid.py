"""A sweep's file and the runs it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import UserError
from shoal.runs.sweep.grid import read_sweep

BASE = "base: {problem: {name: quadratic}, engine: loop}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_combination_has_a_name(tmp_path: Path) -> None:
    text = (
        BASE
        + "grid: {method: [fedavg, {fedinit: {beta: 0.1}}], seed: [0, 1], local.lr: {slow: 0.01}}"
    )
    found = read_sweep(written(tmp_path, text))
    assert list(found) == [
        "fedavg_seed0_slow",
        "fedavg_seed1_slow",
        "fedinit-beta0.1_seed0_slow",
        "fedinit-beta0.1_seed1_slow",
    ]
    last = found["fedinit-beta0.1_seed1_slow"]
    assert (last.seed, last.local.lr, last.method) == (1, 0.01, {"fedinit": {"beta": 0.1}})


def test_the_base_may_be_a_file_and_runs_may_stand_alone(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("problem: quadratic\nseed: 5\n", encoding="utf-8")
    text = "base: base.yaml\nruns: {plain: , other: {method: fedprox, local.epochs: 3}}"
    found = read_sweep(written(tmp_path, text))
    assert found["plain"].seed == 5 and found["other"].local.epochs == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BASE, "needs a grid or runs"),
        (BASE + "gird: {seed: [0]}", "did you mean 'grid'"),
        (BASE + "grid: {seed: 3}", "grid.seed must be a list"),
        (BASE + "grid: {seed: [0, 0]}", "two runs of the grid would be called 'seed0'"),
        (BASE + "grid: {local.lr: [-1]}", "run lr-1: local.lr must be a number above 0"),
        ("base: nowhere.yaml\ngrid: {seed: [0]}", "no such file"),
        (BASE + "grid: {seed: [0]}\nruns: {seed0: {}}", "the name of a run of the grid, too"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_sweep(written(tmp_path, text))
