"""What every session started from, as DynamicInit and its kin report it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.reports.thin import rounded


def session_starts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a start that mixed past models: its number, round, and for every past session its
    weight and (where a probe was compared) its distance.

    >>> record = {"round": 9, "session": 3, "session_weights": [0.9, 0.1]}
    >>> session_starts([record, {**record, "round": 10}])[0]["past"]
    [1, 2]
    """
    found: list[dict[str, Any]] = []
    for record in records:
        weights = record.get("session_weights")
        if not weights:
            continue
        number = int(record.get("session_started", record["session"]))
        if found and found[-1]["start"] == number:
            continue
        found.append(
            {
                "start": number,
                "round": record["round"],
                "past": list(range(number - len(weights), number)),
                "weights": [rounded(w) for w in weights],
                "distances": [rounded(d) for d in record.get("session_distances") or []],
            }
        )
    return found
