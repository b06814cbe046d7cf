"""The world's timeline for a page: who is here and whose labels are swapped, from world.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 40  # members, or runs of neighbours when they are more
COLUMNS = 160  # stretches of rounds, or even runs of rounds when they are more
LOOKED_AT = 16  # members of a row whose concept is looked at
Mask = NDArray[np.bool_]


def timeline(world: Mapping[str, Any]) -> dict[str, Any] | None:
    """Digits 0 to 9: the share of a row's members that is here, and whose labels are swapped.

    ``rows`` are ``[first, one past last]`` ids, ``columns`` the rounds at which columns begin.
    None for a world whose file has no members.
    """
    told = _sessions(world)
    if told is None:
        return None
    members, rounds, sessions = told
    drifts = world.get("drifts") or []
    stages = [{k: s[k] for k in ("start", "kind", "name")} for s in world.get("stages") or []]
    marks = {s["start"] for s in (*sessions, *stages)} | {r for d in drifts for r in d["rounds"]}
    columns, exact = _columns(sorted(m for m in marks if m < rounds), rounds)
    rows = _runs(members, ROWS)
    order = _ranks(drifts, members, rows)
    here, swapped = [], []
    for start, present in zip(columns, _present(sessions, members, columns), strict=True):
        shares = _shares(present, rows)
        here.append([_digit(s) for s in shares])
        swapped.append([_digit(s) for s in _swapped(drifts, members, order, present, start)])
    return {
        "members": members,
        "rounds": rounds,
        "rows": [[r.start, r.stop] for r in rows],
        "columns": columns,
        "exact": exact,
        "here": ["".join(c[i] for c in here) for i in range(len(rows))],
        "swapped": ["".join(c[i] for c in swapped) for i in range(len(rows))],
        "stages": stages,
        "asleep": world.get("available") is not None,
    }


def _sessions(world: Mapping[str, Any]) -> tuple[int, int, list[dict[str, Any]]] | None:
    """Members, rounds and sessions; the segments of a quadratic problem are sessions too."""
    if "sessions" in world and "members" in world:
        return int(world["members"]), int(world["rounds"]), list(world["sessions"])
    segments = world.get("segments")
    if not segments:
        return None
    starts = np.cumsum([0, *(s["rounds"] for s in segments)]).tolist()
    ids = sorted({m for s in segments for m in s["members"]})
    found = [
        {"start": start, "members": [[m, m + 1] for m in segment["members"]]}
        for start, segment in zip(starts, segments, strict=False)
    ]
    return (ids[-1] + 1 if ids else 0), starts[-1], found


def _columns(marks: Sequence[int], rounds: int) -> tuple[list[int], bool]:
    """Where something changes; even runs if that is too often."""
    if len({0, *marks}) <= COLUMNS:
        return sorted({0, *marks}), True
    return [r.start for r in _runs(rounds, COLUMNS)], False


def _runs(total: int, parts: int) -> list[range]:
    parts = min(total, parts)
    return [range(i * total // parts, (i + 1) * total // parts) for i in range(parts)]


def _present(
    sessions: Sequence[Mapping[str, Any]], members: int, columns: Sequence[int]
) -> Iterator[Mask]:
    """Who is here in the first round of every column."""
    here, told = np.zeros(members, dtype=bool), 0
    for column in columns:
        while told < len(sessions) and sessions[told]["start"] <= column:
            session = sessions[told]
            if "members" in session:
                here = np.zeros(members, dtype=bool)
                for first, end in session["members"]:
                    here[first:end] = True
            else:
                here[session["left"]] = False
                here[session["came"]] = True
            told += 1
        yield here


def _shares(present: Mask, rows: Sequence[range]) -> list[float]:
    counts = np.add.reduceat(present.astype(np.int64), [r.start for r in rows])
    return [int(count) / len(row) for count, row in zip(counts, rows, strict=True)]


def _ranks(
    drifts: Sequence[Mapping[str, Any]], members: int, rows: Sequence[range]
) -> list[list[tuple[int, list[int]]]]:
    """A few members of every row, each with its place in the order of every drift."""
    if not drifts:
        return [[] for _ in rows]
    places = [_places(d, members) for d in drifts]
    return [
        [(m, [place(m) for place in places]) for m in row[:: max(1, len(row) // LOOKED_AT)]]
        for row in rows
    ]


def _places(drift: Mapping[str, Any], members: int) -> Callable[[int], int]:
    """Where a member stands in the order in which a drift reaches members."""
    if all(count in (0, members) for count in drift["reached"]):
        return lambda member: 0  # everybody or nobody: the order says nothing
    from shoal.worlds.hashing import rank  # brings torch along

    key = int(drift["key"])
    return lambda member: rank(key, member, members)


def _swapped(
    drifts: Sequence[Mapping[str, Any]],
    members: int,
    order: Sequence[Sequence[tuple[int, list[int]]]],
    present: Mask,
    round: int,
) -> list[float]:
    reached = [_reached(drift, round) for drift in drifts]
    out = []
    for row in order:
        some = [places for member, places in row if present[member]]
        hit = sum(any(p < r for p, r in zip(places, reached, strict=True)) for places in some)
        out.append(hit / len(some) if some else 0.0)
    return out


def _reached(drift: Mapping[str, Any], round: int) -> int:
    found = 0
    for start, count in zip(drift["rounds"], drift["reached"], strict=True):
        found = int(count) if start <= round else found
    return found


def _digit(share: float) -> str:
    """A share in ninths; nothing that is there shows as 0, and 9 is everybody.

    >>> _digit(0.0), _digit(0.001), _digit(0.999), _digit(1.0)
    ('0', '1', '8', '9')
    """
    if share <= 0.0 or share >= 1.0:
        return "9" if share >= 1.0 else "0"
    return str(min(8, max(1, round(9 * share))))
