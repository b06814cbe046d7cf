"""Every method gets the same number of trials, on rows that it does not train on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli import call
from shoal.core.errors import UserError
from shoal.papers.tuning import (
    HELD_OUT,
    TuningPlan,
    best,
    final_scores,
    finals,
    grid_of,
    trials,
    trials_csv,
    tuned_md,
)

BASE = {"data": "digits", "world": {"name": "static", "members": 4, "rounds": 3}}


@pytest.mark.parametrize("count", [1, 4, 30])
def test_the_number_of_trials_does_not_depend_on_the_grid(count: int) -> None:
    rates = (0.01, 0.1, 1.0)
    found = {m: trials(m, count, rates, 0, grid_of(m)) for m in ("fedavg", "fedinit", "special")}
    assert {len(settings) for settings in found.values()} == {count}
    for settings in found.values():
        assert all(0.01 <= s["local.lr"] <= 1.0 for s in settings)
        assert len({json.dumps(s) for s in settings}) == count
    assert all(s["beta"] in grid_of("fedinit")["beta"] for s in found["fedinit"])


def test_trials_are_drawn_by_the_seed_and_one_rate_is_refused() -> None:
    own = grid_of("fedinit")
    assert trials("fedinit", 5, (0.1, 1.0), 1, own) == trials("fedinit", 5, (0.1, 1.0), 1, own)
    assert trials("fedinit", 5, (0.1, 1.0), 1, own) != trials("fedinit", 5, (0.1, 1.0), 2, own)
    with pytest.raises(UserError, match="give at least two"):
        trials("fedavg", 5, (0.1,), 0, {})


def test_trials_hold_rows_out_and_the_best_is_tested_as_the_base_says(tmp_path: Path) -> None:
    plan = TuningPlan(BASE, ("fedavg", "fedprox"), 3, (0.1, 1.0), 0)
    found = plan.all(tmp_path)
    assert len(found) == 6
    for trial in found:
        assert trial.config.local.validation == HELD_OUT
        assert trial.config.evaluate.rows == "members_held_out"
    for trial, score in zip(found, (0.2, 0.5, 0.5, None, 0.9, 0.1), strict=True):
        if score is not None:
            trial.path.mkdir(parents=True)
            (trial.path / "summary.json").write_text(json.dumps({"mean_accuracy": score}))
    winners = best(found, "mean_accuracy")
    assert winners == {"fedavg": found[1], "fedprox": found[4]}
    final = finals(plan, winners, (3, 4), tmp_path)
    config = final["fedprox"][1][1]
    assert config.seed == 4
    assert config.evaluate.rows == "test_present"
    assert config.local.validation == "auto"
    assert config.method == {"fedprox": {"mu": found[4].setting["mu"]}}
    page = tuned_md("plan", winners, "mean_accuracy", {"fedavg": [50.0, 60.0]}, 3)
    assert "| fedavg | local.lr" in page and "55.00 ± 7.07" in page
    assert final_scores(final, "mean_accuracy") == {"fedavg": [], "fedprox": []}
    assert trials_csv(found, "mean_accuracy").count("\n") == 7


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("data: digits\n")
    words = ["tune", str(config), "-o", str(tmp_path / "out")]
    assert call([*words, "--methods", "fedavq"]) == 2
    assert "--methods: 'fedavq' is not known; did you mean 'fedavg'" in capsys.readouterr().err
    assert call([*words, "--methods", "fedavg", "--score", "luck"]) == 2
    assert "--score luck: not known" in capsys.readouterr().err
    assert call([*words, "--methods", "fedavg", "--rates", "a,b"]) == 2
    assert not (tmp_path / "out").exists()
