"""``shoal compare --all``: every method in one world, resumable, ranked."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import catalog
from shoal.papers import comparison

TINY = {
    **comparison.BASE,
    "world": {"name": "static", "members": 6, "rounds": 2},
    "participation": 3,
    "engine": "loop",
}


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: catalog.METHODS[name] for name in ("fedavg", "ditto")}
    monkeypatch.setattr(comparison, "METHODS", few)


@pytest.mark.usefixtures("two_methods")
def test_runs_once_and_ranks(tmp_path: Path) -> None:
    said: list[str] = []
    stories = comparison.compare_all(tmp_path, said.append, TINY)
    assert [s.method for s in stories] == ["fedavg", "ditto"] and len(said) == 2
    page = (tmp_path / "comparison.md").read_text()
    assert "| fedavg |" in page and "| ditto * |" in page
    beside = comparison.costs_beside_print(tmp_path, TINY)
    assert "fedavg" in beside and "1x / 1x" in beside and "scaffold" not in beside
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")}
    comparison.compare_all(tmp_path, said.append, TINY)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/summary.json")} == stamps


def test_every_method_has_a_config_in_both_worlds() -> None:
    for base in (comparison.BASE, comparison.STATIC):
        for name in catalog.METHODS:
            assert comparison.config_for(name, base).seed == 1
