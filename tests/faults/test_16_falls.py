"""How far accuracy fell is told against the last evaluations before a shift, with the lowest."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.schema import Evaluate
from shoal.metrics.figures import figures
from shoal.metrics.shifts import Recovery


def records(curve: list[float | None], *shifts: int) -> list[dict[str, Any]]:
    told = {"kinds": ["members"], "announced": True}
    return [
        {"round": r, "accuracy": a, "loss": 0.0, "seconds": 0.0, "tasks": {}, "rejected": [],
         "short": False, "shift": told if r in shifts else None}
        for r, a in enumerate(curve)
    ]  # fmt: skip


# A slow learner: it warms up over 50 rounds to 0.74, falls to 0.01 at the shift, and comes back.
SLOW = [0.74 * r / 49 for r in range(50)] + [0.01, 0.4, 0.7, 0.74, 0.74]


def test_a_slow_learner_is_not_flattered() -> None:
    found = figures(records(SLOW, 50))
    (shift,) = found["shifts"]
    assert shift["lowest"] == 0.01
    assert shift["before"] == pytest.approx(0.74 * 48 / 49)  # the last three evaluations
    assert shift["fall"] == pytest.approx(0.74 * 48 / 49 - 0.01)  # 71 points, not 38.7
    assert found["mean_fall"] == shift["fall"] and found["lowest"] == 0.01
    assert shift["rounds"] == 3  # within a point of 0.72; the mean of 50 rounds was at 1


def test_no_name_is_left_for_the_flattering_figure() -> None:
    found = figures(records(SLOW, 50))
    assert "mean_dip" not in found and "dip" not in found["shifts"][0]


def test_the_window_counts_evaluations_and_not_rounds() -> None:
    curve: list[float | None] = [0.2, None, None, None, 0.6, None, None, None, 0.7, None, 0.5, 0.5]
    (found,) = Recovery(window=2).all(curve, [10])
    assert found.before == pytest.approx(0.65) and found.fall == pytest.approx(0.15)


def test_recovery_is_to_the_target_where_there_is_one() -> None:
    curve = [0.5, 0.5, 0.5, 0.3, 0.5, 0.7, 0.8, 0.8]
    assert Recovery().all(curve, [3])[0].rounds == 1
    to_target = Recovery(target=0.8).all(curve, [3])[0]
    assert to_target.rounds == 3 and to_target.level == 0.8
    assert to_target.before == 0.5 and to_target.fall == pytest.approx(0.2)
    assert Recovery(target=0.9).all(curve, [3])[0].rounds is None


def test_without_an_evaluation_before_there_is_no_fall() -> None:
    found = figures(records([None, 0.3, 0.4], 1))
    (shift,) = found["shifts"]
    assert (shift["before"], shift["fall"], shift["rounds"]) == (None, None, None)
    assert shift["lowest"] == 0.3
    assert found["unrecovered"] == 0  # there is nothing to come back to
    assert figures(records([0.3, 0.4], 0))["shifts"] == []


def test_lowest_is_until_the_next_shift_only() -> None:
    first, second = Recovery().all([0.9, 0.9, 0.5, 0.8, 0.1, 0.8], [2, 4])
    assert (first.lowest, second.lowest) == (0.5, 0.1)


def test_a_rise_is_told_as_one() -> None:
    (found,) = Recovery().all([0.5, 0.5, 0.6, 0.7], [2])
    assert found.fall == pytest.approx(-0.1) and found.rounds == 0


def test_the_configs_defaults_are_the_rules() -> None:
    assert Evaluate().recovery.window == 3
    assert Recovery(**Evaluate().recovery.model_dump()) == Recovery()
