"""Fewer points than rounds, and nothing lost in silence: means with the lowest and highest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
