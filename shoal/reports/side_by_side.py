"""Several runs as a notebook meets them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.reports import plots
from shoal.reports.faces import Faces, Run, picture
from shoal.reports.frames import frame
from shoal.reports.versus import versus

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

    def __init__(self, *runs: str | Path | Faces) -> None:
        if not runs:
            raise UserError("a comparison needs at least one run")
        self.runs: Sequence[Faces] = [r if isinstance(r, Faces) else Run(r) for r in runs]

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
        """One row a method, the best mean accuracy first."""
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
        axes.set(xlabel=f"points that {first} is ahead (mean accuracy)", ylim=(len(pairs), -1))
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
        *map(_percent, (group["mean"], group["final"])),
    )
    return "<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
