"""Sessions go on with what was trained; the recipes of the paper say ``initial`` in writing."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import shoal
from shoal.config import Config, from_mapping
from shoal.config.read import Loader
from shoal.config.version_0_1 import UNNAMED, filled
from shoal.methods.catalog.registry import complete
from shoal.papers.cells import Cell, cells_of, run_name
from shoal.papers.recipe import papers, recipes

ARCHIVES = Path(__file__).parents[2] / "docs" / "results" / "runs"
FOUR = ("dynamic_init", "previous", "average", "continuous")


@pytest.mark.parametrize("name", FOUR)
def test_no_model_is_thrown_away_by_default(name: str) -> None:
    problem = {"a": [1.0], "b": [4.0], "n": [1.0], "w0": [0.0], "rounds": 3, "sessions": 2}
    segments = [{k: problem[k] for k in ("rounds", "a", "b", "n")}] * 2
    values: dict[str, Any] = {
        "problem": {"segments": segments, "w0": [0.0]},
        "method": name,
        "local": {"lr": 0.1},
        "engine": "loop",
    }
    seen = [record["theta"][0] for record in shoal.run(**values).rounds]
    assert seen == sorted(seen) and seen[3] > seen[2]  # round 3 begins session 1 = P
    values["method"] = {name: {"first_session": "initial"}}
    seen = [record["theta"][0] for record in shoal.run(**values).rounds]
    assert seen[3] == pytest.approx(seen[0])


def cells(paper: str) -> list[Cell]:
    return [
        cell
        for recipe in recipes(paper)
        for reduced in ((False, True) if recipe.reduced is not None else (False,))
        for variant in recipe.variants
        for cell in cells_of(recipe, variant, reduced)
    ]


def test_the_papers_recipes_say_it_in_writing() -> None:
    said = set()
    for cell in cells("dynamic-init"):
        method = cell.config(0).method
        for item in method if isinstance(method, list) else [method]:
            for name, settings in {item: {}}.items() if isinstance(item, str) else item.items():
                if name in FOUR:
                    assert (settings or {}).get("first_session") == "initial", cell.point
                    said.add(name)
    assert said == set(FOUR)


def unmatched(paper: str) -> set[str]:
    """Archived runs that no cell of the paper's recipes is the config of, or with another method
    than that cell has, every setting counted."""
    have: dict[str, Any] = {}
    with tarfile.open(ARCHIVES / f"{paper}.tar.xz", "r:xz") as packed:
        for member in packed:
            name, _, file = member.name.partition("/")
            if file == "config.yaml":
                content = packed.extractfile(member)
                assert content is not None
                have[name] = yaml.load(content.read(), Loader)
    assert have
    seeds = sorted({int(match[1]) for name in have if (match := re.search(r"-s(\d+)-", name))})
    asked = {run_name(c): c for cell in cells(paper) for seed in seeds if (c := cell.config(seed))}
    return {name for name, values in have.items() if not _same(asked.get(name), values)}


def _same(asked: Config | None, archived: dict[str, Any]) -> bool:
    if asked is None:
        return False
    return _settings(from_mapping(filled(archived))) == _settings(asked)


def _settings(config: Config) -> list[Any]:
    """Of its methods, but for those that mean nothing in its world."""
    counts = config.world.name == "classes"
    methods = complete(config.method, config.local.epochs)
    return [
        {name: {k: v for k, v in (own or {}).items() if counts or k not in UNNAMED}}
        for method in (methods if isinstance(methods, list) else [methods])
        for name, own in ({method: {}} if isinstance(method, str) else method).items()
    ]


def test_archived_runs_still_match_their_recipes() -> None:
    assert not unmatched("streams")


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers())
def test_all_archived_runs_still_match_their_recipes(paper: str) -> None:
    assert not unmatched(paper)


def test_another_start_is_another_run() -> None:
    """A run with today's default is not taken for one of 0.1."""
    base: dict[str, Any] = {"problem": "quadratic"}
    names = [
        run_name(from_mapping({**base, "method": method}))
        for method in ("previous", {"previous": {"first_session": "latest"}},
                       {"previous": {"first_session": "initial"}})
    ]  # fmt: skip
    assert names[0] == names[1] != names[2]
