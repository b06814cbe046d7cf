"""A run as a notebook meets it: shown by itself, plotted, turned into a frame."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.reports import plots
from shoal.reports.frames import clients_frame, rounds_frame
from shoal.reports.page_data import Page, read_page
from shoal.reports.records import Record, read_records
from shoal.rundir import RunDir


class Faces:
    """What a run shows of itself."""

    @property
    def page(self) -> Page:
        """Everything that is drawn (:mod:`shoal.reports.page_data`)."""
        raise NotImplementedError

    @property
    def records(self) -> Sequence[Record]:
        """The rounds, as they were written down."""
        raise NotImplementedError

    def frame(self) -> Any:
        """One row a round (pandas, or polars where there is no pandas)."""
        return rounds_frame(self.records)

    def plot_accuracy(self, axes: Any = None) -> Any:
        """Accuracy with shifts, falls and recoveries."""
        return plots.plot_accuracy(self.page, axes)

    def plot_timeline(self, axes: Any = None) -> Any:
        """Who was here, and what changed."""
        return plots.plot_timeline(self.page, axes)

    def plot(self, name: str, axes: Any = None) -> Any:
        """Any figure over rounds: ``loss``, ``active``, ``task 0``, ``gradient_disparity`` ..."""
        axes = plots.plot_series(self.page, name, axes)
        plots.mark_shifts(axes, self.page)
        return axes

    def plot_loss(self, axes: Any = None) -> Any:
        return self.plot("loss", axes)

    def plot_tasks(self, axes: Any = None) -> Any:
        """Accuracy on every task at the end of every stage, in percent."""
        tasks = self.page["tasks"]
        if tasks is None:
            raise UserError("this run has one task only, so it has no task matrix")
        rows = [f"after {name}" for name in tasks["names"]]
        return plots.plot_matrix(tasks["matrix"], rows, tasks["names"], axes)

    def plot_starts(self, axes: Any = None) -> Any:
        """The weights of past sessions' models in every session's start, in percent."""
        starts = self.page["starts"]
        if not starts:
            raise UserError("no session of this run started from a mix of past models")
        columns = sorted({past for start in starts for past in start["past"]})
        values = [
            [dict(zip(s["past"], s["weights"], strict=True)).get(c) for c in columns]
            for s in starts
        ]
        rows = [f"session {s['start']}" for s in starts]
        return plots.plot_matrix(values, rows, [str(c) for c in columns], axes)

    def _repr_html_(self) -> str:
        page = self.page
        about = f"{page['method']}, seed {page['seed']}, {page['rounds']['done']} rounds"
        verdicts = "".join(f"<li>{html.escape(v['text'])}</li>" for v in page["verdicts"])
        name = html.escape(page["name"])
        shown = picture(lambda axes: plots.plot_accuracy(page, axes)) if _scored(page) else ""
        return f"<b>{name}</b> ({html.escape(about)})<ul>{verdicts}</ul>{shown}"


class Run(Faces):
    """A run directory, opened for reading: finished, running or killed.

    ``Run("runs/a")`` shows itself in a notebook; ``frame()``, ``clients()``, ``plot_accuracy()``,
    ``plot_timeline()``, ``plot("loss")``, ``report()`` and the like take it further.

    >>> Run("no/such/run")
    Traceback (most recent call last):
    shoal.errors.UserError: no/such/run is no run directory (it has no config.yaml)
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        if not RunDir(self.directory).config.is_file():
            raise UserError(f"{directory} is no run directory (it has no config.yaml)")

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    @cached_property
    def page(self) -> Page:
        return read_page(self.directory)

    @cached_property
    def records(self) -> list[Record]:
        found, _ = read_records(RunDir(self.directory).rounds)
        if not found:
            raise UserError(f"{self.directory} has no rounds")
        return found

    @property
    def summary(self) -> dict[str, Any]:
        """Final and derived figures."""
        found: dict[str, Any] = self.page["summary"]
        return found

    def clients(self) -> Any:
        """One row a client and round, as a frame."""
        return clients_frame(RunDir(self.directory).clients)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML page that ``shoal report`` makes."""
        from shoal.reports.html import document
        from shoal.rundir import write_text

        target = Path(out) if out is not None else self.directory / "report.html"
        write_text(target, document([self.page]), shared=True)
        return target


def picture(draw: Any) -> str:
    """What ``draw(axes)`` draws, as an image element."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots())
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    data = base64.b64encode(content.getvalue()).decode("ascii")
    return f'<img alt="accuracy over rounds" src="data:image/png;base64,{data}">'


def _scored(page: Page) -> bool:
    return bool(page["summary"]["final_accuracy"] is not None)
