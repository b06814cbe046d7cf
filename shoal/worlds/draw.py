"""A world's timeline as text: who is here, what changed, which labels are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.worlds.composed import Composed
from shoal.worlds.moving import described
from shoal.worlds.roster import ids_of
from shoal.worlds.spans import Spans, spread
from shoal.worlds.timeline import stage_at

WIDTH = 100
_MARGIN = 22  # left of the grid
_LOOKED_AT = 16  # members of a row that are looked at
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
             f"{_count(world.rounds, 'round')}, {_count(len(world.shifts), 'shift')}"),
        _row("round", _ruler(times)),
        _row("session", "".join(_digit(world.membership.session(t.start)) for t in times)),
        _row("stage", "".join(_digit(stage_at(world.stages, t.start)) for t in times)),
        _row("shift", "".join(_mark(world, t) for t in times)),
    ]  # fmt: skip
    for run, cells, shares in zip(shown.rows, shown.cells, shown.shares, strict=True):
        lines.append(_row(_name(run), "".join(map(_symbol, cells, shares))))
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
    found = Spans(range(c, c + 1) for c in labels).pairs
    return " ".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in found)


def events(world: Composed) -> list[str]:
    """One line a shift."""
    lines = [
        _fit(f"{s.round:>6}  {'announced' if s.announced else 'hidden':<10}{s.note}")
        for s in world.shifts.values()
    ]
    if not lines and world.stream is not None:
        return ["nothing changes but the rows, and nobody is told of that"]
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


def _name(run: range) -> str:
    return f"member {run.start}" if len(run) == 1 else f"members {run.start}-{run.stop - 1}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _row(name: str, cells: str) -> str:
    return f"{name:<{_MARGIN}}{cells}".rstrip()[:WIDTH]


def _fit(line: str, width: int = WIDTH) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."
