"""Timelines as text and as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.worlds.changes.arrivals import Arrivals
from shoal.worlds.changes.stages import stage_at
from shoal.worlds.members.ids import MemberRanges, ids_of, spread
from shoal.worlds.world import Composed

# ---- moving --------------------------------------------------------------------------------------
# What a stream looks like: which share of the rows held each class has, as the window moves.

_LOOKED_AT = 16  # members whose rows are counted


def class_shares(world: Composed, rounds: Sequence[int]) -> NDArray[np.float64]:
    """``[rounds, classes]``: shares of the labels that members here (16 evenly spaced ones of
    more) train on in each of the rounds."""
    classes = world.classes or 1
    out = np.zeros((len(rounds), classes))
    for place, round in enumerate(rounds):
        for member in spread(world.here(round), _LOOKED_AT):
            labels = world.train(member, round).labels.cpu().numpy()
            out[place] += np.bincount(labels, minlength=classes)[:classes]
    shares: NDArray[np.float64] = out / np.maximum(1.0, out.sum(1, keepdims=True))
    return shares


def described(world: Composed) -> str:
    """How the window moves, in one line; empty where there is no stream."""
    if world.stream is None:
        return ""
    if isinstance(world.stream, Arrivals):
        window = world.stream.window
        rows = "all so far" if window is None else f"of its last {_count(window, 'period')}"
        last = world.stream.periods.name(world.stream.count - 1)
        return f"a member holds the rows {rows}; the last period, from {last} on, is scored only"
    sizes = [n for stage in world.stages for n in stage.population.sizes()]
    held, new = world.stream.size(max(sizes)), max(sizes) / (world.stream.rounds + 1)
    return f"a member holds its last {held:,} rows; about {new:,.1f} new ones come every round"


# ---- draw ----------------------------------------------------------------------------------------
# A world's timeline as text: who is here, what changed, which labels are held.

WIDTH = 100
_MARGIN = 22  # left of the grid
_ROWS = 40  # members, or groups of neighbours when they are more
_LISTED = 24  # events and stretches that are written out


@dataclass(frozen=True)
class Grid:
    """Rows are runs of member ids, columns runs of rounds. A cell is the concept that most of the
    members here have (-1: nobody is), ``shares`` says how many of the members are here."""

    rows: tuple[range, ...]
    columns: tuple[range, ...]
    cells: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...]


def grid(world: Composed, rows: int, columns: int) -> Grid:
    """A cell shows the first round of its column, and 16 evenly spaced members of its row."""
    ids = runs(world.members, rows)
    times = runs(world.rounds, columns)
    shown = [_column(world, ids, t.start) for t in times]
    cells = tuple(tuple(column[i][0] for column in shown) for i in range(len(ids)))
    shares = tuple(tuple(column[i][1] for column in shown) for i in range(len(ids)))
    return Grid(ids, times, cells, shares)


def runs(total: int, parts: int) -> tuple[range, ...]:
    """Even runs of ``range(total)``, at most ``parts`` of them.

    >>> runs(5, 2)
    (range(0, 2), range(2, 5))
    """
    parts = min(total, parts)
    return tuple(range(i * total // parts, (i + 1) * total // parts) for i in range(parts))


def _column(world: Composed, ids: Sequence[range], round: int) -> list[tuple[int, float]]:
    present = world.membership.present[world.membership.session(round)]
    out = []
    for run in ids:
        some = [m for m in spread(run, _LOOKED_AT) if m in present]
        if world.available is not None and some:
            awake = world.available.awake(ids_of(some), round)
            some = [m for m, up in zip(some, awake, strict=True) if up]
        seen = [world.concept(m, round) for m in some]
        most = max(sorted(set(seen)), key=seen.count, default=-1)
        out.append((most, len(some) / min(_LOOKED_AT, len(run))))
    return out


def text(world: Composed) -> str:
    """The timeline in at most 100 columns and about 100 lines.

    >>> from shoal.data.sources import load
    >>> from shoal.worlds.build import build
    >>> spec = {"name": "churn", "members": 4, "sessions": 2, "rounds_per_session": 3}
    >>> print(text(build(spec, load("digits"), seed=0)).splitlines()[5])
    member 0              000...
    """
    shown = grid(world, _ROWS, WIDTH - _MARGIN)
    times = shown.columns
    lines = [
        _fit(f"world {world.spec.get('name')}: {_count(world.members, 'member')}, "
             f"{_count(world.rounds, 'round')}, {_count(len(world.shifts), 'shift')}"
             f"{_dates(world)}"),
        _row("round", _ruler(times)),
        _row("session", "".join(_digit(world.membership.session(t.start)) for t in times)),
        _row("stage", "".join(_digit(stage_at(world.stages, t.start)) for t in times)),
        _row("shift", "".join(_mark(world, t) for t in times)),
    ]  # fmt: skip
    for run, cells, shares in zip(shown.rows, shown.cells, shown.shares, strict=True):
        lines.append(
            _row(_fit(_name(world, run), _MARGIN - 1), "".join(map(_symbol, cells, shares)))
        )
    lines += ["", "digit: concept of a member that is here   .: absent   |: announced   ?: hidden"]
    if any(0 < share <= 0.5 for shares in shown.shares for share in shares):
        lines.append(",: half of the members or fewer are here")
    told = [described(world), ""] if world.stream is not None else []
    return "\n".join([*lines, "", *stretches(world), "", *told, *events(world)]).rstrip() + "\n"


def stretches(world: Composed) -> list[str]:
    """One line a stretch of rounds between two shifts: who is here, what they hold."""
    starts = [0, *(r for r in world.shifts if r > 0)]
    out = []
    for start, end in zip(starts, [*starts[1:], world.rounds], strict=True):
        moment, shares = world.at(start), world.concept_shares(start)
        concepts = " ".join(f"{c} ({s:.0%})" if s < 1 else f"{c}" for c, s in shares.items())
        stage = f"{moment.stage} {world.stages[moment.stage].name}"
        out.append(_fit(
            f"{f'{start}-{end - 1}':<12}{len(moment.members):>9,}{moment.session:>9}  "
            f"{_fit(stage, 18):<20}{_fit(concepts, 22):<24}{_classes(world.held(start))}"
        ))  # fmt: skip
    head = f"{'rounds':<12}{'members':>9}{'session':>9}  {'stage':<20}{'concept':<24}classes held"
    return [head, *_some(out)]


def _classes(labels: Sequence[int]) -> str:
    """``0-4 7``."""
    found = MemberRanges(range(c, c + 1) for c in labels).pairs
    return " ".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in found)


def events(world: Composed) -> list[str]:
    """One line per shift."""
    lines = [
        _fit(
            f"{s.round:>6}  {_date(world, s.round)}{'announced' if s.announced else 'hidden':<10}"
            f"{s.note}"
        )  # fmt: skip
        for s in world.shifts.values()
    ]
    if not lines and world.stream is not None:
        return ["nothing changes but the rows, and no method is told"]
    if not lines and world.available is not None:
        return ["nothing changes but who can be reached, and no method is told"]
    return _some(lines) if lines else ["nothing ever changes"]


def _some(lines: list[str]) -> list[str]:
    if len(lines) <= _LISTED:
        return lines
    return [*lines[: _LISTED - 1], f"... and {len(lines) - _LISTED + 1} more"]


def _mark(world: Composed, rounds: range) -> str:
    here = [world.shifts[r].announced for r in rounds if r in world.shifts]
    return " " if not here else "|" if any(here) else "?"


def _ruler(times: Sequence[range]) -> str:
    """Round numbers, each beginning at its column."""
    out = ""
    for column, rounds in enumerate(times):
        if column % 10 == 0 and len(out) <= column:
            out = out.ljust(column) + str(rounds.start) + " "
    return out[: len(times)].rstrip()


def _symbol(concept: int, share: float) -> str:
    return "." if share == 0 else "," if share <= 0.5 else _digit(concept)


def _digit(number: int) -> str:
    return "0123456789abcdefghijklmnopqrstuvwxyz"[number] if number < 36 else "+"


def _date(world: Composed, round: int) -> str:
    when = world.when(round)
    return "" if when is None else f"{when:<12}"


def _dates(world: Composed) -> str:
    """From when to when, where there is a calendar."""
    first, last = world.when(0), world.when(world.rounds - 1)
    return "" if first is None else f", {first} to {last}"


def _name(world: Composed, run: range) -> str:
    if world.names is not None:
        first, last = world.names[run.start], world.names[run.stop - 1]
        return first if len(run) == 1 else f"{first} - {last}"
    return f"member {run.start}" if len(run) == 1 else f"members {run.start}-{run.stop - 1}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _row(name: str, cells: str) -> str:
    return f"{name:<{_MARGIN}}{cells}".rstrip()[:WIDTH]


def _fit(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


# ---- picture -------------------------------------------------------------------------------------
# A world's timeline as a PNG.

_STAGES = ("#4878a8", "#e08a3c", "#5a9e6f", "#a05aa0", "#8c6d46", "#c8587a", "#5fb0b7", "#9a9a3e")
_PICTURE_ROWS = 80
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

    shown = grid(world, _PICTURE_ROWS, _COLUMNS)
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
        if axes is upper and world.names is not None and world.members <= _PICTURE_ROWS:
            axes.set_yticks([m + 0.5 for m in range(world.members)], world.names, fontsize=7)
        else:
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
