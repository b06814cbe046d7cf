"""Falls and recoveries, counted by hand."""

from __future__ import annotations

import pytest

from shoal.config import from_mapping
from shoal.config.build import build
from shoal.config.schema import Evaluate
from shoal.core.errors import UserError
from shoal.metrics.shifts import Recovery, Shifted
from shoal.runs.summary import summary


def test_fall_and_rounds_by_hand() -> None:
    # mean before: (0.8 + 0.9 + 1.0) / 3 = 0.9; lowest after: 0.3; level: 0.89
    curve = [0.8, 0.9, 1.0, 0.3, 0.6, 0.88, 0.89, 0.9]
    (found,) = Recovery().all(curve, [3])
    assert found.round == 3 and found.before == pytest.approx(0.9)
    assert found.fall == pytest.approx(0.6)
    assert found.rounds == 3 and found.recovered  # back at round 6, three after the shift


def test_falling_back_before_the_hold_is_over_starts_again() -> None:
    curve = [1.0, 0.5, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    rule = Recovery(hold=3)
    assert rule.all(curve, [1])[0].rounds == 4  # rounds 5, 6 and 7 hold
    assert Recovery(hold=2).all(curve, [1])[0].rounds == 1


def test_until_the_next_shift_is_long_enough() -> None:
    curve = [1.0, 1.0, 0.2, 0.995, 0.2, 0.2]
    first, second = Recovery().all(curve, [2, 4])
    assert first.rounds == 1
    # the mean before the second shift only looks back to the first: (0.2 + 0.995) / 2
    assert second.before == pytest.approx(0.5975)
    assert second.fall == pytest.approx(0.3975) and second.rounds is None


def test_the_window_is_the_last_rounds_only() -> None:
    curve = [0.0] * 10 + [0.8] * 5 + [0.8] * 3
    (found,) = Recovery(window=5).all(curve, [15])
    assert found == Shifted(15, 0.8, 0.8, 0.0, 0.8, 0)


def test_one_point_is_close_enough_and_a_bit_more_is_not() -> None:
    assert Recovery().all([0.9, 0.89], [1])[0].rounds == 0
    assert Recovery().all([0.9, 0.889], [1])[0].rounds is None
    assert Recovery(margin=0.02).all([0.9, 0.889], [1])[0].rounds == 0


def test_rounds_that_were_not_evaluated_are_passed_over() -> None:
    curve = [None, 0.9, None, 0.5, None, 0.9]
    (found,) = Recovery().all(curve, [2])
    assert (found.before, found.fall, found.rounds) == (0.9, pytest.approx(0.4), 3)


def test_nothing_to_compare_with() -> None:
    assert Recovery().all([0.5, 0.6], [0]) == []
    assert Recovery().all([None, 0.6], [1]) == [Shifted(1, None, 0.6, None, None, None)]
    assert Recovery().all([0.5], [7]) == []


def test_the_rule_of_a_config_is_the_rule_of_the_summary() -> None:
    assert Recovery(**Evaluate().recovery.model_dump()) == Recovery()
    config = from_mapping(
        {
            "problem": {"name": "quadratic", "sessions": 2, "rounds": 4, "clients": 2},
            "engine": "loop",
            "evaluate": {"recovery": {"margin": 0.2, "hold": 1, "window": 2}},
        }
    )
    curve = [0.1, 0.8, 0.8, 0.8, 0.5, 0.65, 0.65, 0.65]  # back within 0.2 in round 5, not 0.01
    shift = {"kinds": ["members"], "announced": True}
    records = [
        {"round": r, "accuracy": a, "loss": 0.0, "seconds": 0.0, "tasks": {}, "rejected": [],
         "short": False, "shift": shift if r == 4 else None}
        for r, a in enumerate(curve)
    ]  # fmt: skip
    assert summary(build(config), records)["shifts"][0]["rounds"] == 1
    with pytest.raises(UserError, match="hold"):
        from_mapping({"evaluate": {"recovery": {"hold": 0}}})
