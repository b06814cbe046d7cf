"""Several runs: who is ahead, and when nobody is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reports.made_runs import made_run
from scipy import stats

from shoal.reports.page_data import read_page
from shoal.reports.versus import interval, versus


def compared(tmp_path: Path, *runs: tuple[str, int, float], **config: Any) -> dict[str, Any]:
    """Runs of a method with a seed, whose accuracies are raised by so much."""
    pages = []
    for method, seed, raised in runs:
        path = tmp_path / f"{method}-{seed}"
        made_run(path, {"method": method, "seed": seed, **config.get(method, {})}, raised=raised)
        pages.append(read_page(path))
    return versus(pages)


def test_an_interval_is_students() -> None:
    gaps = [0.01, 0.03, 0.02, 0.05]
    for comparisons in (1, 6):
        level = 1 - 0.05 / comparisons
        low, high = stats.t.interval(level, 3, 0.0275, stats.sem(gaps))
        found = interval(gaps, comparisons)
        assert found == pytest.approx((0.0275, float(low), float(high)))


def test_a_winner_that_the_interval_supports(tmp_path: Path) -> None:
    found = compared(
        tmp_path, *[("fedavg", s, 0.0) for s in (1, 2, 3)], *[("flash", s, 0.05) for s in (1, 2, 3)]
    )
    assert [g["name"] for g in found["groups"]] == ["flash", "fedavg"]
    assert found["groups"][0]["seeds"] == [1, 2, 3]
    assert [p["verdict"] for p in found["pairs"]] == ["ahead", "ahead"]
    assert found["pairs"][0]["mean"] == pytest.approx(0.05)
    assert found["verdict"].startswith("flash has the highest mean accuracy, and every interval")


def test_no_winner_where_seeds_disagree(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        *[("fedavg", s, 0.0) for s in (1, 2, 3)],
        *[("flash", s, r) for s, r in ((1, 0.09), (2, -0.02), (3, 0.0))],
    )
    assert found["groups"][0]["name"] == "flash"
    assert {p["verdict"] for p in found["pairs"]} == {"not separable"}
    assert found["verdict"] == "Not separable: flash is not clearly ahead of fedavg."


def test_one_seed_is_no_evidence(tmp_path: Path) -> None:
    found = compared(tmp_path, ("fedavg", 1, 0.0), ("flash", 1, 0.09))
    assert found["pairs"][0]["low"] is None
    assert found["pairs"][0]["verdict"] == "one seed: no interval"
    assert found["verdict"].startswith("Not separable")


def test_seeds_that_do_not_match_are_not_paired(tmp_path: Path) -> None:
    found = compared(tmp_path, ("fedavg", 1, 0.0), ("fedavg", 2, 0.0), ("flash", 3, 0.09))
    assert found["pairs"] == [] and found["verdict"].startswith("Not separable")


def test_runs_scored_differently_are_not_paired(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        *[("fedavg", s, 0.0) for s in (1, 2)],
        *[("ditto", s, 0.09) for s in (1, 2)],
        ditto={"evaluate": {"rows": "members_held_out"}},
    )
    assert found["pairs"] == []
    assert any("not the same thing" in note for note in found["notes"])


def test_seeds_are_a_band(tmp_path: Path) -> None:
    (group,) = compared(tmp_path, ("fedavg", 1, 0.0), ("fedavg", 2, 0.1))["groups"]
    band = group["band"]
    assert band["low"][0] == pytest.approx(0.3) and band["high"][0] == pytest.approx(0.4)
    assert band["mean"][0] == pytest.approx(0.35)


def test_one_method_with_two_settings_is_told_apart(tmp_path: Path) -> None:
    pages = [
        read_page(made_run(tmp_path / str(rate), {"local": {"lr": rate}})) for rate in (0.1, 0.2)
    ]
    names = {g["name"] for g in versus(pages)["groups"]}
    method = "fedavg + dynamic_init"
    assert names == {f"{method} (local.lr 0.1)", f"{method} (local.lr 0.2)"}


def test_a_run_that_is_not_finished_is_compared_on_what_it_played(tmp_path: Path) -> None:
    a = read_page(made_run(tmp_path / "a", {"method": "flash"}, raised=0.05))
    b = read_page(made_run(tmp_path / "b", {"method": "fedavg"}, rounds=15, finished=False))
    found = versus([a, b])
    (pair,) = found["pairs"]  # no final accuracy to compare
    sign = 1 if pair["a"] == "flash" else -1
    assert pair["of"] == "mean" and sign * pair["mean"] == pytest.approx(0.05)
    assert any("not finished" in note for note in found["notes"])
