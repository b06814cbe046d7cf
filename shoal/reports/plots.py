"""Pictures with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import UserError
from shoal.metrics.functions import SCORES
from shoal.reports.findings import shift_name
from shoal.reports.run_tables import Story

# ---- plots ---------------------------------------------------------------------------------------
# Pictures of pages with matplotlib, for notebooks and papers. Every function returns its axes.

# Okabe and Ito's palette: told apart by people with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Page = dict[str, Any]
Axes = Any  # matplotlib has no types that hold


def new_axes(size: tuple[float, float] = (9.0, 3.6)) -> Axes:
    """Axes of a figure of their own, which a notebook shows."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def plot_series(page: Page, name: str, axes: Axes = None, colour: int = 0, **label: str) -> Axes:
    """One curve over rounds, with a band where rounds were put together."""
    axes = new_axes() if axes is None else axes
    series = page["series"].get(name)
    if series is None:
        known = ", ".join(page["series"])
        raise UserError(f"this run has no figure {name!r}; it has {known}")
    scale = 100.0 if _is_share(name) else 1.0
    values = _floats(series["mean"]) * scale
    known_rounds = np.isfinite(values)
    x = np.array(page["x"])
    tint = COLOURS[colour % len(COLOURS)]
    axes.plot(x[known_rounds], values[known_rounds], color=tint, linewidth=1.6, **label)
    if "low" in series:
        low, high = (_floats(series[k]) * scale for k in ("low", "high"))
        axes.fill_between(x, low, high, color=tint, alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=f"{name}, %" if _is_share(name) else name.replace("_", " "))
    tidy(axes)
    return axes


def plot_accuracy(page: Page, axes: Axes = None) -> Axes:
    """Accuracy (the run's score), what changed, how deep it fell and when it was back."""
    axes = plot_series(page, page["summary"].get("score", "accuracy"), axes)
    axes.set_ylim(_floor(axes), 102)
    mark_shifts(axes, page)
    for shift in page["shifts"]:
        if (shift["fall"] or 0) > 0 and shift["low_round"] is not None:
            back = "never back" if shift["rounds"] is None else f"back in {shift['rounds']}"
            place = (shift["low_round"], 100 * shift["lowest"])
            axes.plot(*place, "o", color="#D55E00", markersize=4, markerfacecolor="white")
            if len(page["shifts"]) <= 12:
                axes.annotate(
                    f"−{100 * shift['fall']:.1f}, {back}",
                    place,
                    xytext=(5, 2),
                    textcoords="offset points",
                    fontsize=7,
                )
    return axes


def plot_timeline(page: Page, axes: Axes = None) -> Axes:
    """Who is here: a row per member (or a run of neighbours), hatched where labels are swapped."""
    shown = page["timeline"]
    if shown is None:
        raise UserError("this run's world.json says nothing of members")
    axes = new_axes((9.0, 3.2)) if axes is None else axes
    ends = [*shown["columns"][1:], shown["rounds"]]
    for row, here, swapped in zip(shown["rows"], shown["here"], shown["swapped"], strict=True):
        for begin, end, share, drift in zip(shown["columns"], ends, here, swapped, strict=True):
            if share == "0":
                continue
            axes.broken_barh(
                [(begin, end - begin)],
                (row[0], row[1] - row[0]),
                facecolor=COLOURS[_stage(shown, begin) % len(COLOURS)],
                alpha=max(0.15, int(share) / 9),
                hatch="////" if drift != "0" else None,
                edgecolor="white",
                linewidth=0,
            )
    axes.set(xlabel="round", ylabel="member", xlim=(0, shown["rounds"]))
    axes.set_ylim(shown["members"], 0)
    mark_shifts(axes, page)
    tidy(axes)
    return axes


def plot_matrix(
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    axes: Axes = None,
    percent: bool = True,
) -> Axes:
    """A table whose cells are coloured."""
    axes = new_axes((1.6 + 1.1 * len(columns), 1.2 + 0.5 * len(rows))) if axes is None else axes
    table = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
    axes.imshow(table, cmap="cividis", aspect="auto", vmin=0, vmax=1 if percent else None)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    top = 1.0 if percent else float(np.nanmax(table)) or 1.0
    for i, j in zip(*np.nonzero(np.isfinite(table)), strict=True):
        text = f"{100 * table[i, j]:.1f}" if percent else f"{table[i, j]:.3g}"
        ink = "black" if table[i, j] > 0.6 * top else "white"
        axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8)
    return axes


def mark_shifts(axes: Axes, page: Page) -> None:
    """A line where the world changed, dotted where nobody was told; words while there is room."""
    many = len(page["shifts"]) > 40
    for shift in page["shifts"]:
        style = "-" if shift["announced"] else ":"
        width, alpha = (0.3, 0.3) if many else (1.0, 0.8)
        axes.axvline(shift["round"], color="0.5", linestyle=style, linewidth=width, alpha=alpha)
        if len(page["shifts"]) <= 12:
            axes.annotate(
                shift_name(shift),
                (shift["round"], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                rotation=20,
                fontsize=7,
                color="0.35",
            )


def tidy(axes: Axes) -> None:
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _stage(shown: dict[str, Any], round: int) -> int:
    return max((i for i, s in enumerate(shown["stages"]) if s["start"] <= round), default=0)


def _floor(axes: Axes) -> float:
    """Where an axis of percents begins: at 0, or lower for a score that fell below it."""
    return 0.0 if axes.dataLim.y0 >= 0.0 else float(axes.get_ylim()[0])


def _is_share(name: str) -> bool:
    return name in ("accuracy", *SCORES.values()) or name.startswith("task ")


def _floats(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


# ---- curves --------------------------------------------------------------------------------------
# Accuracy over rounds, with what changed marked.


def draw_curves(stories: Sequence[Story], out: Path, labels: Sequence[str] | None = None) -> None:
    """One line per run, dotted lines and words where the first run's world changed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(labels or [s.method for s in stories])
    figure, axes = pyplot.subplots(figsize=(9, 4.8), layout="constrained")
    for i, (story, name) in enumerate(zip(stories, names, strict=True)):
        rounds, values = zip(*story.accuracy, strict=True) if story.accuracy else ((), ())
        percent = [100 * v for v in values]
        axes.plot(rounds, percent, label=name, color=COLOURS[i % len(COLOURS)], linewidth=1.6)
    for number, shift in stories[0].shifts:
        axes.axvline(number, color="0.55", linestyle=":", linewidth=1)
        axes.annotate(
            shift_name(shift),
            (number, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            rotation=25,
            ha="left",
            va="bottom",
            fontsize=8,
            color="0.35",
        )
    of = stories[0].figures.get("score", "accuracy")
    axes.set(xlabel="round", ylabel=f"{of}, %", ylim=(_floor(axes), 102))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    if len(stories) > 2:  # below the axes, where they hide no line
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
    else:
        axes.legend(loc="lower right", frameon=False)
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
