"""Populations far beyond the data: a member costs a few bytes until it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from shoal.data.sources import load
from shoal.worlds import build

MAIN = "import sys; from shoal.cli import main; sys.exit(main())"
RECIPE = Path(__file__).parents[2] / "recipes" / "worlds" / "million.yaml"


def played(tmp_path: Path, members: int, rounds: int) -> dict[str, object]:
    """The recipe at another size, in a process of its own: its peak of memory is its own."""
    out = tmp_path / "run"
    here = members // 2
    world = [f"world.members={members}", f"world.rounds={rounds}",
             f"world.poisson.present={here}", "world.drift.at=5"]  # fmt: skip
    changes = [part for change in world for part in ("--set", change)]
    command = [sys.executable, "-c", MAIN, "run", str(RECIPE), "-o", str(out), *changes]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads((out / "summary.json").read_text())
    return found


def test_two_hundred_thousand_members(tmp_path: Path) -> None:
    summary = played(tmp_path, 200_000, 10)
    assert summary["rounds"] == 10 and len(summary["shifts"]) == 9  # type: ignore[arg-type]
    assert float(summary["peak_memory_mb"]) < 1024  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_million_members_in_two_gigabytes(tmp_path: Path) -> None:
    summary = played(tmp_path, 1_000_000, 50)
    assert summary["rounds"] == 50
    assert float(summary["peak_memory_mb"]) < 2048  # type: ignore[arg-type]


def test_a_member_costs_a_few_bytes() -> None:
    """Start-up and fifty rounds of who is here: below 40 bytes a member at the peak."""
    digits = load("digits")

    def peak(members: int) -> int:
        tracemalloc.start()
        spec = {"name": "churn", "members": members, "rounds": 50, "lazy": True, "samples": 40,
                "poisson": {"present": members // 2, "arrive": 200, "leave": 200}}  # fmt: skip
        world = build(spec, digits, seed=0)
        for round in range(50):
            assert len(world.at(round).members) > 1
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1000)
    assert (peak(1_000_000) - peak(1000)) / 1_000_000 < 40
