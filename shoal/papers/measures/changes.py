"""Figures around changes: how deep and how long a drop after a drift is, and sequences of tasks.

Scores around a drift: ``global`` is the record's accuracy of every round, ``local`` that of
members' local models and ``received`` that of the model they began with, every so many rounds
(``evaluate.local_models_every``). Those of tasks are the accuracy on every task so far.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Literal

from shoal.papers.measures import RunFiles, measure

# ---- a drift -------------------------------------------------------------------------------------

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
    """Mean local epochs per client over some rounds, counted from the start or (``after``) from the
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


# ---- tasks ---------------------------------------------------------------------------------------


def of_task(run: RunFiles, task: int, during: int) -> list[float]:
    """Accuracies (shares) on a task in the rounds of a stage, as far as they were measured."""
    found = (r["tasks"].get(f"task {task}") for r in run.records if r["task"] == during)
    return [float(v) for v in found if v is not None]


def tasks(run: RunFiles) -> int:
    return 1 + max(int(r["task"]) for r in run.records)


@measure
def own_task(run: RunFiles, *, task: int = -1, times: float = 100.0) -> float | None:
    """Accuracy on a task after the last round of the run; -1 is the last task."""
    last = tasks(run) - 1
    found = of_task(run, task if task >= 0 else last + 1 + task, last)
    return times * found[-1] if found else None


@measure
def learnt(run: RunFiles) -> float | None:
    """Mean over tasks of the accuracy right after each was learnt, in percent."""
    found = [of_task(run, task, task) for task in range(tasks(run))]
    return 100.0 * fmean(f[-1] for f in found) if all(found) else None


@measure
def rounds_to_best(run: RunFiles) -> float | None:
    """The round of a task's best accuracy while it is learnt, summed over tasks."""
    total = 0
    for task in range(tasks(run)):
        found = of_task(run, task, task)
        if not found:
            return None
        total += 1 + found.index(max(found))
    return float(total)


@measure
def while_learning(
    run: RunFiles, *, task: int, during: int, first: int, rounds: int
) -> float | None:
    """Mean accuracy on a task over some rounds of a stage, in percent."""
    found = of_task(run, task, during)[first : first + rounds]
    return 100.0 * fmean(found) if found else None


@measure
def both_tasks(run: RunFiles) -> float | None:
    """Mean accuracy on the first two tasks after the last round of the second, in percent."""
    found = [of_task(run, task, 1) for task in (0, 1)]
    return 100.0 * fmean(f[-1] for f in found) if all(found) else None


@measure
def bytes_a_round(run: RunFiles) -> float | None:
    """Bytes up and down, mean over rounds."""
    return fmean(r["bytes_up"] + r["bytes_down"] for r in run.records)


@measure
def seconds_a_round(run: RunFiles) -> float | None:
    """Seconds a round without evaluation, mean over rounds."""
    return fmean(r["seconds"] - r.get("seconds_evaluating", 0.0) for r in run.records)


@measure
def client_megabytes(run: RunFiles) -> float | None:
    """What a client holds: the model and what it keeps between rounds, in 2^20 bytes."""
    cost = run.summary.get("cost")
    if cost is None:
        return None
    return float((1.0 + cost["client"]) * run.summary["parameters"] * 4 / 2**20)


@measure
def anchor_bound(run: RunFiles) -> float | None:
    """The largest ratio, over rounds of tasks after the first, of the distance from the task's
    start to ``eta_g D / lambda``, D the largest client update so far; at most 1 if the bound holds.

    D is at most the rate times local steps times the largest gradient, so the printed bound is
    never smaller than this one.
    """
    if not _lambda(run):
        return None
    later = [i for i, record in enumerate(run.records) if record["task"] > 0]
    ratios = [float(run.records[i]["anchor_distance"]) / anchor_bound_of(run, i) for i in later]
    return max(ratios, default=0.0)  # one task only: nothing was anchored


def anchor_bound_of(run: RunFiles, index: int) -> float:
    """``eta_g D / lambda`` for a round; infinite without an anchor."""
    lam = _lambda(run)
    largest = max(float(record["largest_update"]) for record in run.records[: index + 1])
    return largest / (run.records[index]["task"] + 1) / lam if lam else math.inf


def _lambda(run: RunFiles) -> float | None:
    method = run.config.method
    for item in method if isinstance(method, list) else [method]:
        if isinstance(item, dict) and "special" in item:
            return float((item["special"] or {}).get("lam", 0.25))
    return None
