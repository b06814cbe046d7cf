"""Runs in a notebook; data frames."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.core.errors import UserError
from shoal.metrics.figures import headline
from shoal.reports import plots
from shoal.reports.findings import percent
from shoal.reports.page_data import Page, read_page
from shoal.reports.series import part_names
from shoal.reports.versus import versus
from shoal.runs.directory import RunDir
from shoal.runs.records import Record, read_records

# ---- frames --------------------------------------------------------------------------------------
# Rounds, clients and comparisons as data frames: pandas if it is there, polars otherwise.

PLAIN = ("round", "session", "task", "accuracy", "loss", "active", "asked", "steps", "samples",
         "epochs", "bytes_up", "bytes_down", "seconds", "seconds_evaluating",
         "noticed")  # fmt: skip
LIBRARIES = ("pandas", "polars")


def library() -> Any:
    """pandas or polars; both make a frame from a mapping of columns."""
    for name in LIBRARIES:
        if find_spec(name) is not None:
            return import_module(name)
    raise UserError("a frame needs pandas or polars; install one with: pip install 'shoal[frames]'")


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A data frame with these columns."""
    return library().DataFrame(dict(columns))


def rounds_frame(records: Sequence[Record]) -> Any:
    """One row per round: what was measured, what changed, what parts and tasks had to say.

    ``shift`` has the kinds of change (None: none), ``cohort`` and ``rejected`` are counts.
    """
    columns: dict[str, list[Any]] = {name: [r.get(name) for r in records] for name in PLAIN}
    shifts = [r["shift"] for r in records]
    columns["shift"] = [None if s is None else " ".join(s["kinds"]) for s in shifts]
    columns["announced"] = [None if s is None else s["announced"] for s in shifts]
    columns["cohort"] = [len(r["cohort"]) for r in records]
    columns["rejected"] = [len(r["rejected"]) for r in records]
    for key in ("tasks", "metrics"):
        for name in {n: None for r in records for n in r.get(key) or {}}:
            columns[name] = [(r.get(key) or {}).get(name) for r in records]
    for name in part_names(records):
        columns[name] = [r.get(name) for r in records]
    return frame(columns)


def clients_frame(path: Path) -> Any:
    """``clients.parquet``: one row per client and round."""
    import pyarrow.parquet as pq

    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name} yet")
    table = pq.read_table(path)
    return frame({name: table[name].to_numpy() for name in table.column_names})


# ---- faces ---------------------------------------------------------------------------------------
# A run as a notebook meets it: shown by itself, plotted, turned into a frame.


class RunView:
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
        """One row per round (pandas, or polars where there is no pandas)."""
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


class Run(RunView):
    """A run directory, opened for reading: finished, running or killed.

    ``Run("runs/a")`` shows itself in a notebook; ``frame()``, ``clients()``, ``plot_accuracy()``,
    ``plot_timeline()``, ``plot("loss")``, ``report()`` and the like take it further.

    >>> Run("no/such/run")
    Traceback (most recent call last):
    shoal.core.errors.UserError: no/such/run is no run directory (it has no config.yaml)
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
        """One row per client and round, as a frame."""
        return clients_frame(RunDir(self.directory).clients)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML page that ``shoal report`` makes."""
        from shoal.core.files import write_text
        from shoal.reports.html import document

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
    return bool(headline(page["summary"], "final") is not None)


# ---- side by side --------------------------------------------------------------------------------
# Several runs as a notebook meets them.

COLUMNS = (
    "name",
    "seeds",
    "mean",
    "final",
    "fall",
    "lowest",
    "rounds_back",
    "never",
    "bytes",
    "seconds",
)


class Comparison:
    """Runs side by side: repetitions with other seeds are one row, and what can be paired is.

    ``Comparison("runs/a", "runs/b")``, or runs and results that are already there.
    """

    def __init__(self, *runs: str | Path | RunView) -> None:
        if not runs:
            raise UserError("a comparison needs at least one run")
        self.runs: Sequence[RunView] = [r if isinstance(r, RunView) else Run(r) for r in runs]

    def __repr__(self) -> str:
        return f"Comparison({len(self.runs)} runs)"

    @cached_property
    def data(self) -> dict[str, Any]:
        """See :mod:`shoal.reports.versus`."""
        return versus([run.page for run in self.runs])

    @property
    def verdict(self) -> str:
        """Who is ahead, if the intervals say so."""
        return str(self.data["verdict"])

    def frame(self) -> Any:
        """One row per method, the best mean accuracy first."""
        groups = self.data["groups"]
        columns = {name: [g[name] for g in groups] for name in COLUMNS}
        columns["seeds"] = [" ".join(str(s) for s in g["seeds"]) for g in groups]
        return frame(columns)

    def pairs(self) -> Any:
        """One row per pair of methods that can be paired: the difference and its interval."""
        pairs = self.data["pairs"]
        names = ("a", "b", "of", "mean", "low", "high", "verdict")
        columns = {name: [p[name] for p in pairs] for name in names}
        return frame({**columns, "seeds": [len(p["seeds"]) for p in pairs]})

    def plot_accuracy(self, axes: Any = None) -> Any:
        """Means over seeds, with bands from the lowest seed to the highest."""
        axes = plots.new_axes() if axes is None else axes
        for i, group in enumerate(self.data["groups"]):
            page = {"x": group["x"], "series": {group["of"]: group["band"]}}
            plots.plot_series(page, group["of"], axes, i, label=group["name"])
        plots.mark_shifts(axes, self.runs[0].page)
        axes.legend(frameon=False, fontsize=8)
        return axes

    def plot_differences(self, axes: Any = None) -> Any:
        """The first of the ranking minus each of the others, with intervals."""
        first = self.data["groups"][0]["name"]
        pairs = [p for p in self.data["pairs"] if p["a"] == first and p["of"] == "mean"]
        if not pairs:
            raise UserError(" ".join(["nothing here can be paired.", *self.data["notes"]]))
        axes = plots.new_axes((8.0, 1.2 + 0.4 * len(pairs))) if axes is None else axes
        for i, pair in enumerate(pairs):
            if pair["low"] is not None:
                axes.plot([100 * pair["low"], 100 * pair["high"]], [i, i], color="0.4")
            axes.plot(100 * pair["mean"], i, "o", color=plots.COLOURS[0])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(pairs)), [p["b"] for p in pairs])
        of = self.data["groups"][0]["of"]
        axes.set(xlabel=f"points that {first} is ahead (mean {of})", ylim=(len(pairs), -1))
        return axes

    def _repr_html_(self) -> str:
        rows = "".join(_row(i, g) for i, g in enumerate(self.data["groups"], 1))
        head = "<tr><th></th><th>method</th><th>seeds</th><th>mean</th><th>final</th></tr>"
        shown, notes = picture(self.plot_accuracy), html.escape(" ".join(self.data["notes"]))
        return f"<p>{html.escape(self.verdict)}</p><p>{notes}</p><table>{head}{rows}</table>{shown}"


def _row(rank: int, group: dict[str, Any]) -> str:
    cells = (
        rank,
        group["name"],
        len(group["seeds"]),
        *map(percent, (group["mean"], group["final"])),
    )
    return "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>"
