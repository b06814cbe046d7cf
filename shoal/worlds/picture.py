"""A world's timeline as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.worlds.composed import Composed
from shoal.worlds.draw import Grid, grid, runs
from shoal.worlds.moving import class_shares
from shoal.worlds.timeline import stage_at

_STAGES = ("#4878a8", "#e08a3c", "#5a9e6f", "#a05aa0", "#8c6d46", "#c8587a", "#5fb0b7", "#9a9a3e")
_ROWS = 80
State = tuple[int, int, int]
_COLUMNS = 400
_WINDOWS = 100  # rounds of a stream that are looked at


def png(world: Composed, path: str | Path) -> None:
    """Rows are members (runs of neighbours when there are more than 80), columns rounds.

    Colour is the stage (paler where few of a row's members are here), hatching a swapped concept,
    white is absent; a solid line is an announced shift, a dotted one a hidden shift. The strip
    below shows the classes that members here hold; in a stream, the darker the larger their share.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    shown = grid(world, _ROWS, _COLUMNS)
    classes = world.classes or 1
    tall = 1.2 + 0.07 * max(12, len(shown.rows))
    low = 0.5 + 0.07 * min(40, max(8, classes))
    figure = Figure(figsize=(10, tall + low + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(tall, low))
    _members(upper, world, shown)
    _labels(lower, world)
    for axes in (upper, lower):
        _shifts(axes, world)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlim(0, world.rounds)
        axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, world, shown)
    figure.savefig(Path(path), format="png", dpi=120)


def _members(axes: Any, world: Composed, shown: Grid) -> None:
    for row, cells, shares in zip(shown.rows, shown.cells, shown.shares, strict=True):
        for begin, end, state in _stretches(world, shown.columns, cells, shares):
            concept, stage, eighths = state
            if concept < 0:
                continue
            axes.broken_barh(
                [(begin, end - begin)], (row.start, len(row)), facecolor=_colour(stage),
                hatch=_hatch(concept), edgecolor="white", linewidth=0.4,
                alpha=max(1, eighths) / 8,
            )  # fmt: skip
    axes.set_ylim(world.members, 0)
    axes.set_ylabel("member")
    axes.set_title(
        f"world {world.spec.get('name')}: {world.members:,} members, {world.rounds:,} rounds",
        loc="left",
    )


def _stretches(
    world: Composed, columns: Sequence[range], cells: Sequence[int], shares: Sequence[float]
) -> list[tuple[int, int, State]]:
    """Runs of columns with the same (concept, stage, eighths of the members here), as rounds."""
    out: list[tuple[int, int, State]] = []
    for column, concept, share in zip(columns, cells, shares, strict=True):
        state = (concept, stage_at(world.stages, column.start), round(8 * share))
        if out and out[-1][2] == state:
            out[-1] = (out[-1][0], column.stop, state)
        else:
            out.append((column.start, column.stop, state))
    return out


def _labels(axes: Any, world: Composed) -> None:
    """Which classes are held between two shifts; in a stream, how much of each and when."""
    if world.stream is not None:
        columns = runs(world.rounds, _WINDOWS)
        shares = class_shares(world, [c.start for c in columns])
        extent = (0, world.rounds, shares.shape[1] - 0.5, -0.5)
        axes.imshow(shares.T, aspect="auto", cmap="Greys", vmin=0, extent=extent,
                    interpolation="none")  # fmt: skip
    else:
        _held(axes, world)
    axes.set_ylim((world.classes or 1) - 0.5, -0.5)
    axes.set_ylabel("class held")
    axes.set_xlabel("round")


def _held(axes: Any, world: Composed) -> None:
    starts = [0, *(r for r in world.shifts if r > 0)]
    for start, end in zip(starts, [*starts[1:], world.rounds], strict=True):
        for label in world.held(start):
            axes.broken_barh([(start, end - start)], (label - 0.4, 0.8), facecolor="#777777")


def _shifts(axes: Any, world: Composed) -> None:
    many = len(world.shifts) > 40
    for shift in world.shifts.values():
        axes.axvline(
            shift.round,
            color="black",
            linewidth=0.4 if many else 1.3,
            alpha=0.35 if many else 1.0,
            linestyle="-" if shift.announced else ":",
        )


def _legend(figure: Any, world: Composed, shown: Grid) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = sorted({c for cells in shown.cells for c in cells if c > 0})
    handles: list[Any] = [
        Patch(facecolor=_colour(i), label=f"stage {i}: {stage.name}")
        for i, stage in enumerate(world.stages[: len(_STAGES)])
    ]
    if len(world.stages) == 1:
        handles = [Patch(facecolor=_colour(0), label="here")]
    handles += [
        Patch(facecolor="#bbbbbb", edgecolor="white", hatch=_hatch(c), label=f"concept {c}")
        for c in used
    ]
    told = {s.announced for s in world.shifts.values()}
    if True in told:
        handles.append(Line2D([], [], color="black", label="announced shift"))
    if False in told:
        handles.append(Line2D([], [], color="black", linestyle=":", label="hidden shift"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _colour(stage: int) -> str:
    return _STAGES[stage % len(_STAGES)]


def _hatch(concept: int) -> str:
    return ("", "////", "\\\\\\\\", "xxxx", "....", "----")[min(concept, 5)]
