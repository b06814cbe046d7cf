"""The tour of the code counts what is there, and one round stays short enough to follow."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
TOUR = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_FILES = {"loop": 10, "stacked": 18}  # of rounds/ and engines/, in one later round
MOST_MODULES = 260


@pytest.mark.parametrize("engine", MOST_FILES)
def test_the_tour_says_how_many_files_a_round_executes(engine: str) -> None:
    counter = runpy.run_path(str(CHECKOUT / "scripts" / "files_of_a_round.py"))
    found = counter["of_a_round"](counter["files_of"](engine, "fedavg"))
    said = re.search(rf"(\d+)( of `rounds/` and\s`engines/`)? with `{engine}`", TOUR)
    assert said is not None and int(said[1]) == found <= MOST_FILES[engine]


def test_version_0_1_features_take_no_more_modules_than_one_can_know() -> None:
    size = runpy.run_path(str(CHECKOUT / "scripts" / "size.py"))
    later = [size["ROOT"] / name for names in size["LATER"].values() for name in names.split()]
    assert len(set(later)) == len(later) and all(path.exists() for path in later)
    assert len(list(size["ROOT"].rglob("*.py"))) - len(later) <= MOST_MODULES
