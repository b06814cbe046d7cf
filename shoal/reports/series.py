"""Series over rounds, thinned without silent loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.metrics.figures import score_of
from shoal.runs.records import Record

# ---- thin ----------------------------------------------------------------------------------------
# Fewer points than rounds, and nothing lost in silence: means with the lowest and highest.

Values = Sequence[float | None]


def rounded(value: float | None, digits: int = 5) -> float | None:
    """So many significant digits; None for what is no number.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.12346, None)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def span_of(rounds: int, points: int) -> int:
    """Rounds that one point stands for.

    >>> span_of(1000, 1000), span_of(1001, 1000)
    (1, 2)
    """
    return max(1, -(-rounds // points))


def steps(rounds: Sequence[int], span: int) -> list[int]:
    """The first round of every step."""
    return [int(r) for r in rounds[::span]]


def thinned(values: Values, span: int) -> dict[str, Any]:
    """``mean`` of every ``span`` values; with ``low`` and ``high`` where a step is several rounds.

    >>> thinned([1.0, 3.0, None, 2.0], 2)
    {'mean': [2.0, 2.0], 'low': [1.0, 2.0], 'high': [3.0, 2.0]}
    >>> thinned([1.0, None], 1)
    {'mean': [1.0, None]}
    """
    if span == 1:
        return {"mean": [rounded(v) for v in values]}
    groups = [_known(values[i : i + span]) for i in range(0, len(values), span)]
    return {
        "mean": [rounded(sum(g) / len(g)) if g else None for g in groups],
        "low": [rounded(min(g)) if g else None for g in groups],
        "high": [rounded(max(g)) if g else None for g in groups],
    }


def added_up(values: Values, span: int) -> dict[str, Any]:
    """The running sum at the end of every step.

    >>> added_up([1, 2, 3], 2)
    {'mean': [3.0, 6.0]}
    """
    out, total = [], 0.0
    for i in range(0, len(values), span):
        total += sum(_known(values[i : i + span]))
        out.append(rounded(total, 7))
    return {"mean": out}


def _known(values: Values) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]


# ---- course --------------------------------------------------------------------------------------
# The course of a run: series over rounds, what every shift did, what the guard dropped.

EVENTS = 200  # rejected uploads that are listed
# What a round's record holds of itself; every other number is a part's.
OWN = frozenset(
    ("source", "accepted", "received",
     "round", "session", "task", "shift", "noticed", "active", "asked", "short", "cohort",
     "cohort_names", "date", "attempts", "accuracy", "loss", "tasks", "ahead", "metrics",
     "personalised", "generalised",
     "steps", "samples", "epochs", "bytes_up", "bytes_down", "probing", "rejected", "stored",
     "theta", "seconds", "seconds_evaluating", "session_started", "session_weights",
     "session_distances")
)  # fmt: skip


def part_names(records: Sequence[Record]) -> list[str]:
    """Figures that parts reported in any round, in the order they came."""
    found: dict[str, None] = {}
    for record in records:
        for name, value in record.items():
            if name not in OWN and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name)
    return list(found)


def series(records: Sequence[Record], parts: Sequence[str], span: int) -> dict[str, Any]:
    """Everything that is drawn over rounds."""

    def column(name: str) -> list[float | None]:
        return [_number(r.get(name)) for r in records]

    found = {name: thinned(column(name), span) for name in ("accuracy", "loss", "active")}
    found["seconds"] = thinned(column("seconds"), span)
    found["sent_up"] = added_up(column("bytes_up"), span)
    found["sent_down"] = added_up(column("bytes_down"), span)
    found["elapsed"] = added_up(column("seconds"), span)
    for key in ("metrics", "tasks"):
        names = {name: None for r in records for name in r.get(key) or {}}
        for name in names:
            values = [_number((r.get(key) or {}).get(name)) for r in records]
            found[name] = thinned(values, span)
    for name in parts:
        found[name] = thinned(column(name), span)
    return found


def shifts(
    records: Sequence[Record],
    measured: Sequence[Mapping[str, Any]],
    drawn: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Every shift that was reached, with its note and its lowest round."""
    notes = {s["round"]: s.get("note", "") for s in drawn}
    starts = [r["round"] for r in records if r["shift"] is not None]
    effects = {s["round"]: s for s in measured}
    out = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(records)
        shift, effect = records[start]["shift"], effects.get(start, {})
        date, note = records[start].get("date"), notes.get(start, "")
        known = [(a, n) for n, a in _accuracies(records[start:end])]
        out.append(
            {
                "round": start,
                "kinds": shift["kinds"],
                "announced": shift["announced"],
                "note": note if date is None else f"{date}: {note}",
                "before": rounded(effect.get("before")),
                "lowest": rounded(effect.get("lowest")),
                "fall": rounded(effect.get("fall")),
                "level": rounded(effect.get("level")),
                "rounds": effect.get("rounds"),
                "low_round": min(known)[1] if known else None,
            }
        )
    return out


def events(records: Sequence[Record]) -> dict[str, Any]:
    """What the guard rejected."""
    found = [
        {"round": r["round"], "client": e["client"], "reason": e["reason"]}
        for r in records
        for e in r["rejected"]
    ]
    return {"total": len(found), "events": found[:EVENTS]}


def _accuracies(records: Sequence[Record]) -> list[tuple[int, float]]:
    found = [(r["round"], score_of(r)) for r in records]
    return [(round, value) for round, value in found if value is not None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
