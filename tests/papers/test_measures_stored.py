"""What was measured of a model outlives the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import MissingDataError
from shoal.papers import measures
from shoal.papers.measures import FIGURES, stored_figure
from shoal.papers.play import pack, unpack


def gone() -> float | None:
    raise FileNotFoundError("model.safetensors")


def test_a_figure_is_taken_once(tmp_path: Path) -> None:
    assert stored_figure(tmp_path, "loss", {"rows": "gap"}, lambda: 0.25) == 0.25
    assert stored_figure(tmp_path, "loss", {"rows": "gap"}, gone) == 0.25
    assert stored_figure(tmp_path, "loss", {"rows": "test"}, lambda: None) is None
    assert stored_figure(tmp_path, "loss", {"rows": "test"}, lambda: 1.0) is None  # it is none


@pytest.mark.parametrize("error", [FileNotFoundError("model"), MissingDataError("data")])
def test_without_a_model_there_is_none_and_nothing_is_written(
    tmp_path: Path, error: Exception
) -> None:
    def take() -> float | None:
        raise error

    assert stored_figure(tmp_path, "loss", {}, take) is None
    assert not (tmp_path / FIGURES).exists()


def test_an_archive_has_the_figures_and_no_model(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    for name in ("config.yaml", "rounds.jsonl", "summary.json", "world.json", "model.safetensors"):
        (run / name).write_text("{}")
    stored_figure(run, "loss", {}, lambda: 0.5)
    assert pack([run], tmp_path / "runs.tar.xz") == 1
    assert unpack(tmp_path / "runs.tar.xz", tmp_path / "elsewhere") == 1
    there = tmp_path / "elsewhere" / "one"
    assert not (there / "model.safetensors").exists()
    assert stored_figure(there, "loss", {}, gone) == 0.5


def test_measures_that_walk_from_a_runs_model_keep_what_they_find() -> None:
    """Else a page cannot be made again from its archive, which has no models."""
    walking = {"closed_form_error", "fixed_point"}
    assert all(measures.find(name) for name in walking)
    assert walking <= measures.OF_MODELS
