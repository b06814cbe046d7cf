"""The course of a run: series over rounds, what every shift did, what the guard dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.reports.records import Record
from shoal.reports.thin import added_up, rounded, thinned

EVENTS = 200  # rejected uploads that are listed
# What a round's record holds of itself; every other number is a part's.
OWN = frozenset(
    ("source", "accepted", "received",
     "round", "session", "task", "shift", "noticed", "active", "asked", "short", "cohort",
     "attempts", "accuracy", "loss", "tasks", "ahead", "metrics", "personalised", "generalised",
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
        known = [(a, n) for n, a in _accuracies(records[start:end])]
        out.append(
            {
                "round": start,
                "kinds": shift["kinds"],
                "announced": shift["announced"],
                "note": notes.get(start, ""),
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
    return [(r["round"], r["accuracy"]) for r in records if r["accuracy"] is not None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
