"""What happens when members change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.metrics.recovery import Recovery
from shoal.reproduce.measures import Reading, measure


@measure
def first_rounds(
    run: Reading, *, session: int, rounds: int = 5, window: Literal["after", "authors"] = "after"
) -> float | None:
    """Mean accuracy of the first rounds of a session, in percent.

    ``window: authors`` begins one round before the session, as the printed tables do: its first
    entry is the last round of the session before, scored on the classes of that session. Sessions
    may be counted from the end (-1 is the last).
    """
    place = session_rounds(run, session)
    if place is None:
        return None
    begin = place.start - (1 if window == "authors" else 0)
    end = min(begin + rounds, place.stop)
    return percent(run.accuracy[begin:end]) if begin >= 0 else None


@measure
def round_before(run: Reading, *, session: int) -> float | None:
    """Accuracy of the last round before a session, on the classes of the session before."""
    place = session_rounds(run, session)
    if place is None or not place.start:
        return None
    return percent(run.accuracy[place.start - 1 : place.start])


@measure
def start_loss(run: Reading, *, session: int) -> float | None:
    """Loss of the first model of a session on its members' training rows.

    The run's method must report it (``measure_training_loss``).
    """
    place = session_rounds(run, session)
    value = run.records[place.start].get("train_loss") if place else None
    return None if value is None else float(value)


@measure
def group_weight(run: Reading, *, session: int) -> float | None:
    """Share of the start that comes from past sessions of the same group, in percent.

    None where the weights were not reported, or where the history has one group only.
    """
    places = run.sessions()
    number = session if session >= 0 else len(places) + session
    if not 0 <= number < len(places):
        return None
    weights = run.records[places[number].start].get("session_weights")
    if not weights:
        return None
    groups = session_groups(run, len(places))
    past = groups[number - len(weights) : number]
    if len(set(past)) < 2:
        return None
    mine = (w for w, group in zip(weights, past, strict=True) if group == groups[number])
    return 100.0 * float(sum(mine))


@measure
def shift_mean(
    run: Reading, *, key: Literal["dip", "rounds"], window: int = 50, times: float = 1.0
) -> float | None:
    """Mean over shifts of version 0.1's dip (how far accuracy falls below its mean over the last
    ``window`` rounds before a shift, 0 if it never does), or of the rounds until it is back there.

    Summaries have a shorter window since, and falls instead of dips; published figures keep this.
    """
    starts = [r["round"] for r in run.records if r["shift"] is not None]
    shifts = Recovery(window=window).all(run.accuracy, starts)
    found = [
        (None if s.fall is None else max(0.0, s.fall)) if key == "dip" else s.rounds for s in shifts
    ]
    known = [v for v in found if v is not None]
    return times * sum(known) / len(known) if known else None


def session_groups(run: Reading, count: int) -> list[int]:
    """Which group of members every session has."""
    options = run.config.world.options
    order = options.get("order")
    groups = int(options.get("groups", 2))
    return [int(g) for g in order] if order else [s % groups for s in range(count)]


def session_rounds(run: Reading, session: int) -> range | None:
    """The rounds of a session, None if the run has no such session."""
    places = run.sessions()
    return places[session] if -len(places) <= session < len(places) else None


def percent(values: Sequence[float | None]) -> float | None:
    """The mean of what was measured, times 100."""
    known = [v for v in values if v is not None]
    return 100.0 * sum(known) / len(known) if known else None
