"""An installed wheel works: what is no Python code comes along, nothing is read of a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("shoal", "recipes", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def command(*words: str | Path, where: Path, path: Path | None = None) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment = {**kept, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=where, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, in a folder of its own."""
    there = tmp_path_factory.mktemp("wheel")
    copy, target = there / "copy", there / "site"
    copy.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / part)
    quiet = ("-m", "pip", "--disable-pip-version-check")
    plain = ("--no-deps", "--no-build-isolation")
    command(*quiet, "wheel", "-q", *plain, "-w", there, copy, where=there)
    (wheel,) = there.glob("*.whl")
    command(*quiet, "install", "-q", "--no-deps", "--target", target, wheel, where=there)
    return target


def test_a_newcomer_gets_from_a_table_to_a_report(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "visits.csv", tmp_path)
    shoal = ("-m", "shoal")
    file = command("-c", "import shoal; print(shoal.__file__)", where=tmp_path, path=installed)
    assert Path(file.strip()).is_relative_to(installed)
    command(*shoal, "new", "visits.csv", where=tmp_path, path=installed)
    command(*shoal, "run", "visits.yaml", "-o", "run", where=tmp_path, path=installed)
    command(*shoal, "report", "run", where=tmp_path, path=installed)
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_recipes_and_figures_come_along(installed: Path, tmp_path: Path) -> None:
    assert list((installed / "shoal" / "recipes").rglob("*.yaml"))
    told = command("-m", "shoal", "reproduce", "--help", where=tmp_path, path=installed)
    assert "reproduce" in told
