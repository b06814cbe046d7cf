"""SPECIAL's theorems, checked along a run: losses and gradients of earlier tasks.

A run keeps its last model only, so it is played again in memory (the same bits) and looked at in
every round; what is found is kept beside its summary. Meant for small models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from shoal.config.build import Plan, build
from shoal.player import Player
from shoal.reproduce.measures import Reading, measure_of_model
from shoal.reproduce.measures.special import anchor_bound_of, tasks
from shoal.types import Batch

LOOKED_AT = (1, 5, 10, 20)  # rounds of a task
POWERS = 30  # products with the Hessian until its largest eigenvalue is taken as found


@dataclass(frozen=True)
class Played:
    """The models of a run, before its first round and after every one."""

    plan: Plan
    models: Sequence[Tensor]

    def rows(self, rounds: range, clients: Sequence[int]) -> Batch:
        """What clients train on in a task that has these rounds."""
        held = [self.plan.world.train(client, rounds.start) for client in clients]
        x = torch.cat([data.pool.x[data.rows] for data in held])
        return Batch(x, torch.cat([data.labels for data in held]))

    def loss(self, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        """The mean over tasks of the mean loss of their rows."""
        task, stats = self.plan.settings.task, self.plan.initial.stats
        each = [task.row_losses(task.forward(theta, b, stats, True), b).mean() for b in batches]
        return torch.stack(each).mean()

    def gradient(self, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        found: Tensor = torch.func.grad(self.loss)(theta, batches)
        return found


@cache
def _played(path: Path) -> Played:
    plan = build(Reading(path).config)
    player = Player(plan)
    models = [player.federation.models[0].theta.clone()]
    while not player.done:
        player.play()
        models.append(player.federation.models[0].theta.clone())
    return Played(plan, models)


def _stages(run: Reading) -> list[range]:
    """The rounds of every task."""
    found = [[i for i, r in enumerate(run.records) if r["task"] == t] for t in range(tasks(run))]
    return [range(rounds[0], rounds[-1] + 1) for rounds in found]


def _all_rows(run: Reading, played: Played) -> list[Batch]:
    """The rows of every task, everybody's."""
    stages, world = _stages(run), played.plan.world
    return [played.rows(rounds, world.at(rounds.start).members) for rounds in stages]


@measure_of_model
def aligned_share(run: Reading) -> float | None:
    """Percent of the participants of later tasks whose gradient at the model they receive has a
    positive cosine with the gradient of the earlier tasks' loss at the start of the task."""
    played, every = _played(run.path), _all_rows(run, _played(run.path))
    agree: list[bool] = []
    for task, rounds in enumerate(_stages(run)):
        if not task:
            continue
        earlier = played.gradient(played.models[rounds.start], every[:task])
        for index in rounds:
            for client in run.records[index]["cohort"]:
                mine = played.rows(rounds, [client])
                slope = played.gradient(played.models[index], [mine])
                agree.append(bool(slope @ earlier > 0))
    return 100.0 * fmean(agree) if agree else None


@measure_of_model
def earlier_rise(run: Reading, *, after: int) -> float | None:
    """How much the mean loss of earlier tasks has risen since the start of a task, after some
    rounds of it; the mean over tasks."""
    found = [rise for _, rise, _ in _rises(run, (after,))]
    return fmean(found) if found else None


@measure_of_model
def rise_over_bound(run: Reading) -> float | None:
    """The largest ratio of that rise (after 1, 5, 10 and 20 rounds) to ``L/2 d^2``: what aligned
    gradients leave of the descent lemma, with L the largest eigenvalue of the Hessian at the start
    of the task and d the bound on the distance from it, ``eta_g D / lambda``."""
    found = [rise / bound for _, rise, bound in _rises(run, LOOKED_AT) if bound]
    return max(found) if found else None


def _rises(run: Reading, after: Sequence[int]) -> list[tuple[int, float, float]]:
    """Task, rise and bound, for every later task and every number of rounds."""
    played, out = _played(run.path), []
    every = _all_rows(run, played)
    for task, rounds in enumerate(_stages(run)):
        if not task:
            continue
        start, earlier = played.models[rounds.start], every[:task]
        before = float(played.loss(start, earlier))
        curve = 0.5 * _sharpness(played, start, earlier)
        for count in after:
            if count <= len(rounds):
                index = rounds.start + count
                rise = float(played.loss(played.models[index], earlier)) - before
                out.append((task, rise, curve * anchor_bound_of(run, index - 1) ** 2))
    return out


def _sharpness(played: Played, theta: Tensor, batches: Sequence[Batch]) -> float:
    """The largest eigenvalue of the Hessian, by power iteration."""
    vector = torch.ones_like(theta) / theta.numel() ** 0.5
    value = 0.0
    for _ in range(POWERS):
        product = torch.func.jvp(lambda x: played.gradient(x, batches), (theta,), (vector,))[1]
        value = float(product.norm())
        vector = product / max(value, 1e-30)
    return value


@measure_of_model
def smallest_gradient(run: Reading) -> float | None:
    """The smallest squared norm of the gradient of all tasks' summed losses in the rounds of the
    last task."""
    played, rounds = _played(run.path), _stages(run)[-1]
    every = _all_rows(run, played)
    models = [played.models[index + 1] for index in rounds]
    return min(float((len(every) * played.gradient(m, every)).square().sum()) for m in models)
