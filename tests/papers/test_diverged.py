"""A run that comes apart is told, not played again, kept, and named on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from papers.tiny import write_recipe

from shoal.cli import call
from shoal.runs.directory import RunDir, diverged

AXES = {
    "dataset": {"near": {}},
    "method": {"Plain": {}, "Too fast": {"set": {"local.lr": 1e30}}},
}


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    recipe = write_recipe(tmp_path, axes=AXES, when=[], reduced=None)
    return ["reproduce", str(recipe), "--workers", "1", "--seeds", "0"]


def test_it_is_told_and_not_played_again(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call([*command, "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert "diverged: round" in said.err and "try a smaller local.lr" in said.err
    assert "not finished" not in said.out
    (apart,) = [p for p in (out / "runs").iterdir() if diverged(p) is not None]
    assert not RunDir(apart).finished
    stamp = RunDir(apart).rounds.stat().st_mtime_ns
    assert call([*command, "-o", str(out)]) == 0
    assert "to play" not in capsys.readouterr().err
    assert RunDir(apart).rounds.stat().st_mtime_ns == stamp


def test_it_is_kept_and_named_on_the_page(tmp_path: Path, command: list[str]) -> None:
    kept, page = tmp_path / "kept.tar.xz", tmp_path / "results"
    assert call([*command, "-o", str(tmp_path / "out"), "--archive", str(kept)]) == 0
    again = ["--archive", str(kept), "--publish", str(page)]
    assert call([*command, "-o", str(tmp_path / "other"), *again]) == 0
    assert len([p for p in (tmp_path / "other" / "runs").iterdir() if diverged(p) is not None]) == 1
    line = next(x for x in (page / "tiny.md").read_text().splitlines() if "- diverged:" in x)
    assert "Too fast" in line and "seed 0 in round" in line
