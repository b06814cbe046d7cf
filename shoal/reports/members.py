"""How differently clients fare over time, and who is left behind, from ``clients.parquet``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.reports.thin import rounded, span_of

STEPS = 120  # points of time
ROWS = 40  # clients of the heat map, or runs of neighbours when they are more
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
    columns = _columns(path)
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


def _columns(path: Path) -> dict[str, Any] | None:
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
