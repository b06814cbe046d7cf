"""Accuracy right after something changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Window = Literal["after", "authors"]


class Transition(NamedTuple):
    """``after`` is the mean accuracy of the first k rounds from the shift on. ``authors`` is the
    mean of k entries that begin one round before it, as the tables of the first of the five
    papers were made: it counts a round of the session that is over."""

    round: int
    after: float | None
    authors: float | None


def transitions(
    accuracy: Sequence[float | None], shifts: Sequence[int], k: int = 10
) -> list[Transition]:
    """One entry a shift after round 0; rounds without a figure, and those from the next shift on,
    are left out of the means.

    >>> transitions([0.9, 0.9, 0.1, 0.3, 0.5], [2], k=2)
    [Transition(round=2, after=0.2, authors=0.5)]
    """
    starts = sorted({s for s in shifts if 0 < s < len(accuracy)})
    out = []
    ends = [*starts[1:], len(accuracy)]
    for start, end in zip(starts, ends, strict=False):
        after = _mean(accuracy[start : min(start + k, end)])
        out.append(Transition(start, after, _mean(accuracy[start - 1 : min(start - 1 + k, end)])))
    return out


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
