"""Figures of a run as a whole."""

from __future__ import annotations

from typing import Any

from shoal.errors import UserError
from shoal.reproduce.measures import Reading, measure
from shoal.reproduce.measures.transitions import percent


@measure
def final_accuracy(run: Reading, *, last: int = 1) -> float | None:
    """Mean accuracy of the last rounds that were evaluated, in percent."""
    known = [a for a in run.accuracy if a is not None]
    return percent(known[-last:])


@measure
def best_accuracy(run: Reading) -> float | None:
    """The best accuracy of any round, in percent."""
    known = [a for a in run.accuracy if a is not None]
    return percent([max(known)]) if known else None


@measure
def recorded(run: Reading, *, key: str, round: int = -1, times: float = 1.0) -> float | None:
    """A number that the record of a round has (the last round unless said), times a factor."""
    records = run.records
    if not -len(records) <= round < len(records):
        return None
    return _number(records[round].get(key), key, times)


@measure
def summed_up(run: Reading, *, key: str, times: float = 1.0) -> float | None:
    """A number of ``summary.json`` by its dotted key, times a factor."""
    found: Any = run.summary
    for step in key.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return _number(found, key, times)


def _number(value: Any, key: str, times: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"measure: {key!r} of the run is {value!r}, which is no number")
    return float(value) * times
