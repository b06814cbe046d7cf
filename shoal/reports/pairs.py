"""Differences between methods over the seeds that both have run, with honest intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, NamedTuple

Page = dict[str, Any]
LEVEL = 0.95  # of all intervals of a comparison together
FIGURES = ("mean", "final")


class Interval(NamedTuple):
    """Mean of paired differences; ``low`` and ``high`` are None for a single pair."""

    mean: float
    low: float | None
    high: float | None


def interval(differences: Sequence[float], comparisons: int = 1) -> Interval:
    """Student's t over seeds: ``mean +- t_{n-1} s / sqrt(n)``.

    Bonferroni: with ``comparisons`` intervals each has the confidence ``1 - 0.05 / comparisons``,
    so that all of them hold together in 95 of 100 experiments, whichever one is looked at.

    >>> [round(v, 4) for v in interval([0.02, 0.03, 0.04])]
    [0.03, 0.0052, 0.0548]
    >>> interval([0.02])
    Interval(mean=0.02, low=None, high=None)
    """
    n = len(differences)
    mean = sum(differences) / n
    if n < 2:
        return Interval(mean, None, None)
    from scipy.special import stdtrit

    spread = sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    wide = float(stdtrit(n - 1, 1 - (1 - LEVEL) / (2 * max(1, comparisons)))) * spread / sqrt(n)
    return Interval(mean, mean - wide, mean + wide)


def paired(names: Sequence[str], sets: Sequence[Sequence[Page]]) -> list[dict[str, Any]]:
    """Every two groups that share a seed and are scored alike, in the order of the ranking.

    The intervals of one figure hold together; mean and final accuracy are two such families.
    """
    matched = [
        (i, j, _matches(sets[i], sets[j]))
        for i in range(len(sets))
        for j in range(i + 1, len(sets))
        if sets[i][0]["scored_on"] == sets[j][0]["scored_on"]
    ]
    matched = [entry for entry in matched if entry[2]]
    out = []
    for figure in FIGURES:
        for i, j, pairs in matched:
            gaps = [_gap(a, b, figure) for a, b in pairs]
            known = [g for g in gaps if g is not None]
            if known:
                found = interval(known, len(matched))
                entry = {"a": names[i], "b": names[j], "of": figure, **found._asdict()}
                entry["seeds"] = [a["seed"] for a, _ in pairs]
                out.append({**entry, "verdict": _verdict(found)})
    return out


def _matches(a: Sequence[Page], b: Sequence[Page]) -> list[tuple[Page, Page]]:
    others = {page["seed"]: page for page in b}
    return [(page, others[page["seed"]]) for page in a if page["seed"] in others]


def _gap(a: Page, b: Page, figure: str) -> float | None:
    """Over the rounds both measured; for ``final`` both must be finished."""
    if figure == "final":
        ends = [page["summary"]["final_accuracy"] for page in (a, b)]
        done = all(page["state"] == "finished" for page in (a, b))
        return ends[0] - ends[1] if done and None not in ends else None
    if a["rounds"]["done"] == b["rounds"]["done"]:
        whole = [page["summary"]["mean_accuracy"] for page in (a, b)]
        return None if None in whole else whole[0] - whole[1]
    other = dict(zip(b["x"], b["series"]["accuracy"]["mean"], strict=True))
    own = zip(a["x"], a["series"]["accuracy"]["mean"], strict=True)
    gaps = [v - other[r] for r, v in own if v is not None and other.get(r) is not None]
    return sum(gaps) / len(gaps) if gaps else None


def _verdict(found: Interval) -> str:
    """A winner only where the interval lies on one side of 0.

    >>> _verdict(Interval(0.02, None, None)), _verdict(Interval(0.02, -0.01, 0.05))
    ('one seed: no interval', 'not separable')
    """
    if found.low is None:
        return "one seed: no interval"
    if found.low > 0:
        return "ahead"
    return "behind" if (found.high if found.high is not None else inf) < 0 else "not separable"
