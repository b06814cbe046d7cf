"""Figures of accuracy and of recorded numbers over rounds: levels, changes of members, slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from safetensors.torch import load_file

from shoal.config.build import build
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.metrics.evaluate import Scores, evaluate, pooled_scores
from shoal.metrics.shifts import Recovery
from shoal.papers.measures import RunFiles, measure, measure_of_model, power_law
from shoal.runs.directory import RunDir
from shoal.runs.summary import gradients_a_step


@measure
def final_accuracy(run: RunFiles, *, last: int = 1) -> float | None:
    """Mean accuracy of the last rounds that were evaluated, in percent."""
    known = [a for a in run.accuracy if a is not None]
    return percent(known[-last:])


@measure
def best_accuracy(run: RunFiles) -> float | None:
    """The best accuracy of any round, in percent."""
    known = [a for a in run.accuracy if a is not None]
    return percent([max(known)]) if known else None


@measure
def recorded(run: RunFiles, *, key: str, round: int = -1, times: float = 1.0) -> float | None:
    """A number that the record of a round has (the last round unless said), times a factor."""
    records = run.records
    if not -len(records) <= round < len(records):
        return None
    return _number(records[round].get(key), key, times)


@measure
def summed_up(run: RunFiles, *, key: str, times: float = 1.0) -> float | None:
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


# ---- changes of members --------------------------------------------------------------------------
@measure
def first_rounds(
    run: RunFiles, *, session: int, rounds: int = 5, window: Literal["after", "authors"] = "after"
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
def round_before(run: RunFiles, *, session: int) -> float | None:
    """Accuracy of the last round before a session, on the classes of the session before."""
    place = session_rounds(run, session)
    if place is None or not place.start:
        return None
    return percent(run.accuracy[place.start - 1 : place.start])


@measure
def start_loss(run: RunFiles, *, session: int) -> float | None:
    """Loss of the first model of a session on its members' training rows.

    The run's method must report it (``measure_training_loss``).
    """
    place = session_rounds(run, session)
    value = run.records[place.start].get("train_loss") if place else None
    return None if value is None else float(value)


@measure
def group_weight(run: RunFiles, *, session: int) -> float | None:
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
    run: RunFiles, *, key: Literal["dip", "rounds"], window: int = 50, times: float = 1.0
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


def session_groups(run: RunFiles, count: int) -> list[int]:
    """Which group of members every session has."""
    options = run.config.world.options
    order = options.get("order")
    groups = int(options.get("groups", 2))
    return [int(g) for g in order] if order else [s % groups for s in range(count)]


def session_rounds(run: RunFiles, session: int) -> range | None:
    """The rounds of a session, None if the run has no such session."""
    places = run.sessions()
    return places[session] if -len(places) <= session < len(places) else None


def percent(values: Sequence[float | None]) -> float | None:
    """The mean of what was measured, times 100."""
    known = [v for v in values if v is not None]
    return 100.0 * sum(known) / len(known) if known else None


# ---- rates and fluctuation -----------------------------------------------------------------------
@measure
def mean_of(run: RunFiles, *, key: str, times: float = 1.0, root: bool = False) -> float | None:
    """Mean over rounds of a number that every round's record has, times a factor.

    ``root`` takes the square root of each first (a mean squared distance becomes a distance).
    """
    found = [float(r[key]) for r in run.records if r.get(key) is not None]
    values = [v**0.5 if root else v for v in found]
    return times * sum(values) / len(values) if values else None


@measure
def mean_rate(run: RunFiles) -> float | None:
    """The mean rate that clients used: what the method set, or the config's own."""
    used = mean_of(run, key="mean_client_rate")
    return run.config.local.lr if used is None else used


@measure
def rounds_to(run: RunFiles, *, level: float) -> float | None:
    """Rounds until an accuracy (in percent) is reached; one more than there are if it never is."""
    for count, value in enumerate(run.accuracy, 1):
        if value is not None and 100.0 * value >= level:
            return float(count)
    return float(len(run.accuracy) + 1)


@measure
def fluctuation(run: RunFiles) -> float | None:
    """Standard deviation of the change of accuracy from round to round, in points."""
    known = [100.0 * a for a in run.accuracy if a is not None]
    changes = [b - a for a, b in zip(known, known[1:], strict=False)]
    return stdev(changes) if len(changes) > 1 else None


# ---- slopes, shares, losses ----------------------------------------------------------------------
@measure
def last_of(run: RunFiles, *, key: str, last: int = 1) -> float | None:
    """Mean over the last rounds of a number in the records."""
    found = [float(r[key]) for r in run.records[-last:] if r.get(key) is not None]
    return fmean(found) if found else None


@measure
def log_slope(run: RunFiles, *, key: str) -> float | None:
    """Slope of log(number) against log(round) over the second half of the run, least squares."""
    half = run.records[len(run.records) // 2 :]
    points = [(r["round"] + 1, r[key]) for r in half if (r.get(key) or 0.0) > 0.0]
    return power_law(*zip(*points, strict=True)) if len(points) > 1 else None


@measure
def rounds_to_share(run: RunFiles, *, share: float = 0.97) -> float | None:
    """The first round with such a share of the run's final accuracy (of its last 5 evaluations)."""
    known = [(r["round"] + 1, r["accuracy"]) for r in run.records if r["accuracy"] is not None]
    if not known:
        return None
    final = fmean(a for _, a in known[-5:])
    return next((float(n) for n, a in known if a >= share * final), None)


@measure_of_model
def loss_of(run: RunFiles, *, rows: Literal["train", "test", "gap"]) -> float | None:
    """Mean loss of the final model on all members' training rows or on the test rows; ``gap`` is
    test minus training loss."""
    train, test = _losses(run.path)
    found = {"train": train, "test": test, "gap": test - train}[rows]
    return found if math.isfinite(found) else None


@cache
def _losses(path: Path) -> tuple[float, float]:
    tensors = load_file(RunDir(path).model)  # first: where it is gone, nothing else is worth doing
    plan = build(RunFiles(path).config)
    task, world = plan.settings.task, plan.world
    assert isinstance(task, ModuleTask), "a quadratic problem has no file of tensors"
    model = task.pack(tensors)
    last = world.rounds - 1
    held = [world.train(client, last) for client in world.at(last).members]
    scores: list[Scores] = [evaluate(task, model, data) for data in held]
    test = evaluate(task, model, world.tests(last)["global"])
    return pooled_scores(scores, held).loss, test.loss


@measure
def gradients(run: RunFiles) -> float | None:
    """Gradients that a client evaluates in its first round, divided by its local steps."""
    return gradients_a_step(build(run.config))
