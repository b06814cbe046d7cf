"""Runs and comparisons as a notebook meets them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
from reports.made_runs import made_run

import shoal
from shoal.core.errors import UserError
from shoal.reports import notebook


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture
def run(tmp_path: Path) -> shoal.Run:
    return shoal.Run(made_run(tmp_path / "a"))


def test_a_run_shows_itself(run: shoal.Run) -> None:
    text = run._repr_html_()
    assert "Came back after 2 of 3 shifts" in text and "data:image/png;base64," in text
    assert run.summary["final_accuracy"] == 0.5


def test_names_stay_text(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    runs = [made_run(tmp_path / n, {"method": hostile, "seed": i}) for i, n in enumerate("ab")]
    for shown in (shoal.Run(runs[0]), shoal.Comparison(*runs)):
        assert hostile not in shown._repr_html_() and "&lt;img" in shown._repr_html_()


def test_plots(run: shoal.Run) -> None:
    drawn = run.plot_accuracy()
    assert max(drawn.lines[0].get_ydata()) == pytest.approx(90)
    assert run.plot_loss(drawn) is drawn
    assert len(run.plot_timeline().collections) == 4 * 1 + 4 * 3  # members by stretches of rounds
    assert [t.get_text() for t in run.plot_tasks().texts] == ["90.0", "25.0", "50.0"]
    assert [t.get_text() for t in run.plot_starts().texts] == ["75.0", "25.0"]
    assert run.plot("gradient_disparity").get_ylabel() == "gradient disparity"
    with pytest.raises(UserError, match="no figure 'speed'; it has accuracy"):
        run.plot("speed")


def test_a_comparison(tmp_path: Path) -> None:
    runs = [
        made_run(tmp_path / f"{m}{s}", {"method": m, "seed": s}, raised=r)
        for m, r in (("fedavg", 0.0), ("flash", 0.05))
        for s in (1, 2)
    ]
    found = shoal.Comparison(*runs)
    assert found.verdict.startswith("flash has") and "flash has" in found._repr_html_()
    assert [t.get_text() for t in found.plot_accuracy().get_legend().texts] == ["flash", "fedavg"]
    assert found.plot_differences().get_yticklabels()[0].get_text() == "fedavg"


def test_pandas(run: shoal.Run, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    rounds = run.frame()
    assert len(rounds) == 40 and rounds["shift"][10] == "members" and rounds["rejected"][5] == 1
    assert rounds["task 1"][39] == 0.5 and rounds["gradient_disparity"][10] == 0.01
    assert len(run.clients()) == 40 * 8
    other = made_run(tmp_path / "b", {"method": "flash"}, raised=0.05)
    both = shoal.Comparison(run, other)
    assert list(both.frame()["name"]) == ["flash", "fedavg + dynamic_init"]
    assert list(both.pairs()["verdict"]) == ["one seed: no interval"] * 2


def test_polars_where_there_is_no_pandas(run: shoal.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame is made of the same columns by whichever library is found."""
    other = ModuleType("polars")
    other.DataFrame = dict  # type: ignore[attr-defined]
    only: Any = lambda name: object() if name == "polars" else None  # noqa: E731
    monkeypatch.setattr(notebook, "find_spec", only)
    monkeypatch.setitem(sys.modules, "polars", other)
    assert run.frame()["round"] == list(range(40))


def test_neither(run: shoal.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs pandas or polars; install one with"):
        run.frame()


def test_a_result_in_memory_has_the_same_faces() -> None:
    result = shoal.run(
        world={"name": "churn", "members": 4, "sessions": 2, "rounds_per_session": 2},
        model={"name": "mlp", "hidden": 4},
        engine="loop",
    )
    assert "4 rounds" in result._repr_html_()
    assert len(result.plot_accuracy().lines[0].get_xdata()) == 4
    assert result.plot_timeline().get_xlim() == (0, 4)
