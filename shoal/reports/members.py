"""Who is here over time, and how differently clients fare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.world_protocol import World
from shoal.data.partition.heterogeneity import heterogeneity, label_histograms
from shoal.reports.series import rounded, span_of

# ---- heat ----------------------------------------------------------------------------------------
# How differently members' labels are spread: figures, and the heat map.

MOST = 200  # members looked at, evenly spaced


def held_labels(
    world: World, round: int = 0
) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """The labels of members present, one after another, and each member's places in them; all 0
    where a row has no single class."""
    members = world.at(round).members
    step = max(1, len(members) // MOST)
    labels = [world.train(int(c), round).labels.cpu().numpy() for c in members[::step]]
    if _without_classes(world):
        labels = [np.zeros(len(own), np.int64) for own in labels]
    ends = np.cumsum([len(own) for own in labels])
    parts = [np.arange(end - len(own), end) for own, end in zip(labels, ends, strict=True)]
    return np.concatenate(labels).astype(np.int64), parts


def heterogeneity_line(world: World) -> str:
    """Label entropy, distance to the whole federation's labels, and spread of sizes, in words."""
    labels, parts = held_labels(world)
    found = heterogeneity(labels, parts).summary()
    bare = _without_classes(world)  # then only sizes say something
    kept = {k: v for k, v in found.items() if not bare or k not in ("entropy", "distance")}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in kept.items())
    return f"{'rows' if bare else 'labels'} of {len(parts)} members in round 0: {shown}"


def _without_classes(world: World) -> bool:
    """Whether the world says that its rows have no single class."""
    return getattr(world, "classes", 0) is None


def draw_heat(world: World, out: Path) -> None:
    """Rows are members, columns classes, colour the share of the member's rows."""
    if _without_classes(world):
        raise UserError(
            "a heat map shows members' classes, and this data's rows have no single one"
        )
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, parts = held_labels(world)
    table = label_histograms(labels, parts).astype(float)
    table /= np.maximum(1, table.sum(1, keepdims=True))
    figure, axes = pyplot.subplots(figsize=(6, 6), layout="constrained")
    image = axes.imshow(table, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    axes.set(xlabel="class", ylabel="member", title="share of a member's rows in each class")
    figure.colorbar(image)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    finally:
        pyplot.close(figure)


# ---- presence ------------------------------------------------------------------------------------
# The world's timeline for a page: who is here and whose labels are swapped, from world.json.

ROWS = 40  # members, or runs of neighbours when they are more
TIMELINE_COLUMNS = 160  # stretches of rounds, or even runs of rounds when they are more
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
        "dates": _begins(columns, world.get("calendar")),
        "stages": stages,
        "asleep": world.get("available") is not None,
    }


def _begins(columns: Sequence[int], calendar: Mapping[str, Any] | None) -> list[str] | None:
    """The date of every column, in a world with a calendar."""
    if calendar is None:
        return None
    return [calendar["begins"][round // calendar["rounds_per_period"]] for round in columns]


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
    if len({0, *marks}) <= TIMELINE_COLUMNS:
        return sorted({0, *marks}), True
    return [r.start for r in _runs(rounds, TIMELINE_COLUMNS)], False


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
    from shoal.core.rng import rank  # brings torch along

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


# ---- members -------------------------------------------------------------------------------------
# How differently clients fare over time, and who is left behind, from ``clients.parquet``.

STEPS = 120  # points of time
LISTED = 10  # clients that are named
LAST = 5  # measurements that say how a client fares at the end
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
QUANTILES = {"low": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "high": 1.0}
COLUMNS = ("round", "client", "steps", "norm", "accuracy")


def members(path: Path) -> dict[str, Any] | None:
    """Quantiles over clients in every step of time, the lowest ten, and a coarse picture of all.

    ``of`` is ``accuracy`` (each client's own, where evaluation looked at members) or else ``norm``
    (the length of uploads). None where there is no table yet.
    """
    columns = _members_columns(path)
    if columns is None or not len(columns["round"]):
        return None
    measured = np.isfinite(columns["accuracy"])
    of = "accuracy" if measured.any() else "norm"
    kept = np.isfinite(columns[of])
    if not kept.any():
        return None
    rounds, clients = columns["round"].astype(np.int64), columns["client"].astype(np.int64)
    span = span_of(int(rounds.max()) + 1, STEPS)
    found = _over_time(rounds[kept] // span, columns[of][kept].astype(np.float64), span)
    ids, places = np.unique(clients, return_inverse=True)
    trained = np.bincount(places, columns["steps"] > 0, len(ids)).astype(int)
    out = {"of": of, "span": span, "clients": len(ids), **found, **_trained(trained)}
    if of == "accuracy":
        value = columns[of].astype(np.float64)
        out["behind"] = _behind(ids, places[kept], rounds[kept], value[kept], trained)
        out["grid"] = _grid(ids, places[kept], rounds[kept] // span, value[kept])
    return out


def _members_columns(path: Path) -> dict[str, Any] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return None
    try:
        table = pq.read_table(path, columns=list(COLUMNS))
    except (OSError, pa.ArrowException):
        return None  # not a table that this version wrote
    return {name: table[name].to_numpy() for name in COLUMNS}


def _over_time(step: Ints, value: Floats, span: int) -> dict[str, Any]:
    order = np.argsort(step, kind="stable")
    starts = np.unique(step[order], return_index=True)[1]
    groups = np.split(value[order], starts[1:])
    found: dict[str, Any] = {"round": [int(s) * span for s in np.unique(step)]}
    table = [np.quantile(g, list(QUANTILES.values())) for g in groups]
    for i, name in enumerate(QUANTILES):
        found[name] = [rounded(float(row[i]), 4) for row in table]
    found["worst_tenth"] = [rounded(_worst_tenth(g), 4) for g in groups]
    return found


def _worst_tenth(values: Floats) -> float:
    return float(np.sort(values)[: -(-len(values) // 10)].mean())


def _trained(times: Ints) -> dict[str, Any]:
    """How often clients took part."""
    return {
        "never_trained": int((times == 0).sum()),
        "times_trained": [int(times.min()), float(np.median(times)), int(times.max())],
    }


def _behind(
    ids: Ints, places: Ints, rounds: Ints, value: Floats, trained: Ints
) -> list[dict[str, Any]]:
    """The clients whose last measurements are lowest."""
    order = np.lexsort((rounds, places))
    seen, starts = np.unique(places[order], return_index=True)
    ends = [*starts[1:], len(order)]
    rows = []
    for place, begin, end in zip(seen, starts, ends, strict=True):
        last = order[max(begin, end - LAST) : end]
        rows.append((float(value[last].mean()), int(place), int(rounds[last[-1]])))
    return [
        {"client": int(ids[p]), "accuracy": rounded(mean, 4), "trained": int(trained[p]), "last": r}
        for mean, p, r in sorted(rows)[:LISTED]
    ]


def _grid(ids: Ints, places: Ints, step: Ints, value: Floats) -> dict[str, Any]:
    """Mean accuracy of a run of clients in a step of time; -1 where nobody was measured."""
    rows = min(len(ids), ROWS)
    cell = (places * rows // len(ids)) * (int(step.max()) + 1) + step
    size = rows * (int(step.max()) + 1)
    count = np.bincount(cell, minlength=size)
    mean = np.bincount(cell, value, size) / np.maximum(1, count)
    percent = np.where(count > 0, np.round(100 * mean), -1).astype(int)
    edges = [-(-i * len(ids) // rows) for i in range(rows)]
    last = [*(e - 1 for e in edges[1:]), len(ids) - 1]
    return {
        "rows": [[int(ids[a]), int(ids[b])] for a, b in zip(edges, last, strict=True)],
        "percent": percent.reshape(rows, -1).tolist(),
    }
