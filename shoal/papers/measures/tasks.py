"""Figures of a sequence of tasks, from the accuracy on every task so far in every round."""

from __future__ import annotations

import math
from statistics import fmean

from shoal.papers.measures import RunFiles, measure


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
