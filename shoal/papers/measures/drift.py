"""Figures around a drift: how deep, how long, and what the server's optimiser did.

Scores: ``global`` is the record's accuracy of every round, ``local`` that of members' local models
and ``received`` that of the model they began with, every so many rounds
(``evaluate.local_models_every``).
"""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from shoal.papers.measures import RunFiles, measure

Score = Literal["global", "local", "received"]
Point = tuple[int, float]  # a round and a score, in percent
HOLD = 20  # rounds that a recovery has to last


def scores(run: RunFiles, score: Score) -> list[Point]:
    """Every measured score, with its round."""
    if score == "global":
        return [
            (r["round"], 100.0 * r["accuracy"]) for r in run.records if r["accuracy"] is not None
        ]
    key = "accuracy" if score == "local" else "received"
    return [(r["round"], 100.0 * r["local"][key]) for r in run.records if r.get("local")]


def in_means(points: list[Point], rounds: int) -> list[Point]:
    """Means of so many rounds each, at their first round; a last block that is shorter counts."""
    blocks: dict[int, list[float]] = {}
    begin = points[0][0] if points else 0
    for number, value in points:
        blocks.setdefault((number - begin) // rounds, []).append(value)
    return [(begin + k * rounds, fmean(values)) for k, values in blocks.items()]


def drifts(run: RunFiles) -> list[int]:
    """Rounds at which labels changed their meaning."""
    return [r["round"] for r in run.records if r["shift"] and "concept" in r["shift"]["kinds"]]


def span(run: RunFiles, drift: int, until: Literal["end", "next"]) -> tuple[int, int] | None:
    """From a drift (counted from 0) to the end of the run, or to the next drift."""
    found = drifts(run)
    if not 0 <= drift < len(found):
        return None
    last = found[drift + 1] if until == "next" and drift + 1 < len(found) else len(run.records)
    return found[drift], last


@measure
def lowest(
    run: RunFiles,
    *,
    score: Score = "local",
    mean: int = 1,
    drift: int = 0,
    until: Literal["end", "next"] = "end",
) -> float | None:
    """The lowest score from a drift on, in percent; of means of so many rounds if ``mean`` > 1."""
    where = span(run, drift, until)
    if where is None:
        return None
    points = [p for p in scores(run, score) if where[0] <= p[0] < where[1]]
    return min((value for _, value in in_means(points, mean)), default=None)


@measure
def recovery(run: RunFiles, *, score: Score = "local", points: float = 2.0) -> float | None:
    """Rounds from the drift until the score is within so many points of its mean over the last 50
    rounds and stays there for 20; all that are left if it never is. Global scores are means of 10
    rounds, since single rounds right after the swap are a floor for every method."""
    where = span(run, 0, "end")
    if where is None:
        return None
    found = [p for p in scores(run, score) if p[0] >= where[0]]
    found = in_means(found, 10) if score == "global" else found
    steady = fmean(value for number, value in found if number >= where[1] - 50)
    begun: int | None = None
    for number, value in found:
        if value < steady - points:
            begun = None
            continue
        begun = number if begun is None else begun
        if number - begun >= HOLD:
            return float(begun - where[0])
    return float((where[1] if begun is None else begun) - where[0])


@measure
def level(
    run: RunFiles, *, score: Score = "local", last: int = 50, before: bool = False
) -> float | None:
    """Mean score of the last rounds of the run, or of those before the first drift."""
    found = drifts(run)
    if before and not found:
        return None
    end = found[0] if before else len(run.records)
    values = [value for number, value in scores(run, score) if end - last <= number < end]
    return fmean(values) if values else None


@measure
def spread_of_clients(run: RunFiles, *, last: int = 50) -> float | None:
    """Standard deviation over members of their local models' accuracy, mean of the last rounds."""
    end = len(run.records)
    found = [r["local"]["std"] for r in run.records[end - last :] if r.get("local")]
    return 100.0 * fmean(found) if found else None


@measure
def epochs_spent(run: RunFiles) -> float | None:
    """Local epochs of all clients from the drift on."""
    found = drifts(run)
    return float(sum(r["epochs"] for r in run.records[found[0] :])) if found else None


@measure
def mean_epochs(
    run: RunFiles, *, first: int = 0, rounds: int = 20, after: bool = False
) -> float | None:
    """Mean local epochs a client over some rounds, counted from the start or (``after``) from the
    drift; ``first`` may be negative then."""
    found = drifts(run)
    if after and not found:
        return None
    begin = first + (found[0] if after else 0)
    records = run.records[max(0, begin) : begin + rounds]
    clients = sum(len(r["cohort"]) for r in records)
    return sum(r["epochs"] for r in records) / clients if clients else None


@measure
def internal(run: RunFiles, *, key: str, first: int, rounds: int) -> float | None:
    """Mean of a number that the server's optimiser reports, over rounds around the drift."""
    found = drifts(run)
    if not found:
        return None
    begin = max(0, found[0] + first)
    values = [
        r[key] for r in run.records[begin : found[0] + first + rounds] if r.get(key) is not None
    ]
    return fmean(values) if values else None


@measure
def rounds_to_own(run: RunFiles, *, share: float = 0.97, score: Score = "local") -> float | None:
    """Rounds until the score first reaches a share of its own mean over the last 50 rounds."""
    final = level(run, score=score, last=50)
    if final is None:
        return None
    return next((float(n) for n, value in scores(run, score) if value >= share * final), None)
