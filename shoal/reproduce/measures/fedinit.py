"""Figures of the runs behind FedInit's claims."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal

from safetensors.torch import load_file

from shoal.config.build import build
from shoal.metrics.evaluate import Scores, evaluate, pooled_scores
from shoal.reproduce import slope
from shoal.reproduce.measures import Reading, measure, measure_of_model
from shoal.rundir import RunDir
from shoal.summary import gradients_a_step
from shoal.task import ModuleTask


@measure
def last_of(run: Reading, *, key: str, last: int = 1) -> float | None:
    """Mean over the last rounds of a number in the records."""
    found = [float(r[key]) for r in run.records[-last:] if r.get(key) is not None]
    return fmean(found) if found else None


@measure
def log_slope(run: Reading, *, key: str) -> float | None:
    """Slope of log(number) against log(round) over the second half of the run, least squares."""
    half = run.records[len(run.records) // 2 :]
    points = [(r["round"] + 1, r[key]) for r in half if (r.get(key) or 0.0) > 0.0]
    return slope.log_slope(*zip(*points, strict=True)) if len(points) > 1 else None


@measure
def rounds_to_share(run: Reading, *, share: float = 0.97) -> float | None:
    """The first round with such a share of the run's final accuracy (of its last 5 evaluations)."""
    known = [(r["round"] + 1, r["accuracy"]) for r in run.records if r["accuracy"] is not None]
    if not known:
        return None
    final = fmean(a for _, a in known[-5:])
    return next((float(n) for n, a in known if a >= share * final), None)


@measure_of_model
def loss_of(run: Reading, *, rows: Literal["train", "test", "gap"]) -> float | None:
    """Mean loss of the final model on all members' training rows or on the test rows; ``gap`` is
    test minus training loss."""
    train, test = _losses(run.path)
    found = {"train": train, "test": test, "gap": test - train}[rows]
    return found if math.isfinite(found) else None


@cache
def _losses(path: Path) -> tuple[float, float]:
    tensors = load_file(RunDir(path).model)  # first: where it is gone, nothing else is worth doing
    plan = build(Reading(path).config)
    task, world = plan.settings.task, plan.world
    assert isinstance(task, ModuleTask), "a quadratic problem has no file of tensors"
    model = task.pack(tensors)
    last = world.rounds - 1
    held = [world.train(client, last) for client in world.at(last).members]
    scores: list[Scores] = [evaluate(task, model, data) for data in held]
    test = evaluate(task, model, world.tests(last)["global"])
    return pooled_scores(scores, held).loss, test.loss


@measure
def gradients(run: Reading) -> float | None:
    """Gradients that a client evaluates in its first round, divided by its local steps."""
    return gradients_a_step(build(run.config))
