"""How far a run is, how long it will take, and whether it is still alive."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from shoal.reports.records import Record

State = Literal["finished", "running", "silent", "waiting"]
PATIENCE = 30.0  # seconds without news before a run counts as silent
ROUNDS = 5.0  # or so many of its slowest recent rounds


def seconds_left(recent: Sequence[Record], done: int, planned: int | None) -> float | None:
    """The middle of recent rounds' seconds, times the rounds that are left.

    >>> seconds_left([{"seconds": 2.0}, {"seconds": 9.0}, {"seconds": 2.0}], done=3, planned=10)
    14.0
    """
    known = _seconds(recent)
    if planned is None or not known:
        return None
    return median(known) * max(0, planned - done)


def state(finished: bool, recent: Sequence[Record], quiet: float) -> State:
    """``quiet`` is seconds since the run last wrote. A killed run cannot say so: it is silent.

    >>> state(False, [{"seconds": 60.0}], quiet=100.0)
    'running'
    >>> state(False, [{"seconds": 1.0}], quiet=100.0)
    'silent'
    """
    if finished:
        return "finished"
    slowest = max(_seconds(recent), default=0.0)
    if quiet > max(PATIENCE, ROUNDS * slowest):
        return "silent"
    return "running" if recent else "waiting"


def _seconds(records: Sequence[Record]) -> list[float]:
    found = (record.get("seconds") for record in records)
    return [float(s) for s in found if isinstance(s, int | float) and not isinstance(s, bool)]
