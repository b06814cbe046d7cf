"""Measures on run directories written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from papers.tiny import write_run

from shoal.core.errors import UserError
from shoal.papers.measures import RunFiles, check, measured

SESSIONS = [0, 0, 1, 1, 1, 2, 2]
ACCURACY = [0.1, 0.2, 0.3, 0.5, None, 0.7, 0.9]


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    weights = [[], [], [], [], [], [0.25, 0.75], [0.25, 0.75]]
    losses = [3.0, 2.0, 1.5, 1.0, 0.5, 0.4, 0.3]
    path = write_run(
        tmp_path / "run", ACCURACY, SESSIONS, session_weights=weights, train_loss=losses
    )
    return RunFiles(path)


def test_the_honest_window_begins_with_the_session_and_the_authors_one_round_before(
    run: RunFiles,
) -> None:
    after = measured({"first_rounds": {"session": 1, "rounds": 2}}, run)
    authors = measured({"first_rounds": {"session": 1, "rounds": 2, "window": "authors"}}, run)
    assert after == pytest.approx(100 * (0.3 + 0.5) / 2)
    assert authors == pytest.approx(100 * (0.2 + 0.3) / 2)


def test_a_window_ends_with_its_session_and_leaves_out_what_was_not_measured(run: RunFiles) -> None:
    assert measured({"first_rounds": {"session": 1, "rounds": 9}}, run) == pytest.approx(40.0)
    assert measured({"first_rounds": {"session": -1, "rounds": 5}}, run) == pytest.approx(80.0)


def test_a_session_that_is_not_there_has_no_figure(run: RunFiles) -> None:
    assert measured({"first_rounds": {"session": 3}}, run) is None
    assert measured({"first_rounds": {"session": 0, "window": "authors"}}, run) is None


def test_weight_on_the_same_group_and_loss_of_the_start(run: RunFiles) -> None:
    # sessions 0 and 2 have group 0, so the first of the two weights is the same group's
    assert measured({"group_weight": {"session": 2}}, run) == pytest.approx(25.0)
    assert measured({"group_weight": {"session": 1}}, run) is None  # no weights
    assert measured({"start_loss": {"session": 2}}, run) == 0.4


def test_figures_of_the_whole_run(run: RunFiles) -> None:
    assert measured("final_accuracy", run) == pytest.approx(90.0)
    assert measured({"final_accuracy": {"last": 2}}, run) == pytest.approx(80.0)
    assert measured("best_accuracy", run) == pytest.approx(90.0)
    assert measured({"recorded": {"key": "train_loss", "round": 1}}, run) == 2.0
    assert measured({"recorded": {"key": "nothing"}}, run) is None
    assert measured({"summed_up": {"key": "cost.up", "times": 10}}, run) == 20.0
    with pytest.raises(UserError, match="'session_weights' of the run is .* no number"):
        measured({"recorded": {"key": "session_weights"}}, run)


def test_a_measure_or_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="measure 'first_round' is not known; did you mean"):
        check("first_round")
    with pytest.raises(UserError, match="has no option 'sesion'; did you mean 'session'"):
        check({"first_rounds": {"sesion": 1}})
    check({"math:fsum": {}})
