"""Theorems checked at the models of a run, and footprints of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.config.build import RunPlan, build
from shoal.core import rng
from shoal.core.task import ModuleTask
from shoal.core.types import Batch, ClientData
from shoal.methods.parts.mean_field_rates import Swept, Trajectory, control_rates, pretrained
from shoal.papers.measures import RunFiles, measure_of_model
from shoal.papers.measures.changes import anchor_bound_of, tasks
from shoal.rounds.play import ServerCalls
from shoal.rounds.state import Federation, Round
from shoal.runs.directory import RunDir
from shoal.runs.player import Player
from shoal.runs.summary import gradients_of_a_round

# ---- FedAgg --------------------------------------------------------------------------------------
MOST = 100
ALPHA = 0.1


@measure_of_model
def fixed_point(
    run: RunFiles, *, model: Literal["first", "last"], what: Literal["sweeps", "rate"] = "sweeps"
) -> float | None:
    """Sweeps of Algorithm 1, over all members at one global model, until both changes (norms) are
    at most 0.001; one more than 100 if they are not. ``rate`` is the largest rate it ends with.

    The first estimate is a walk of L steps of the full gradient at the base rate.
    """
    end = _swept(run.path, model)
    if what == "sweeps":
        return float(end.sweeps if end.met else MOST + 1)
    phi = end.trajectory
    return float(control_rates(phi.phi1, phi.phi2[1:], phi.phi2[0], ALPHA).max())


@measure_of_model
def closed_form_error(run: RunFiles, *, instances: int = 100) -> float | None:
    """Largest relative difference between the rates of eq. (15) and the minimum of eq. (13) that a
    Newton step on the cost itself finds, over random instances and the walks of this run."""
    draw = torch.Generator().manual_seed(run.config.seed)
    found = []
    for _ in range(instances):
        phi1, phi2, w = (
            torch.randn(*s, generator=draw).double() for s in ((3, 20), (3, 20), (20,))
        )
        found.append(_error(phi1, phi2, w))
    for model in ("first", "last"):
        phi = _first_walk(run.path, model)
        found.append(_error(phi.phi1, phi.phi2[1:], phi.phi2[0]))
    return max(found)


@measure_of_model
def gradients_a_round(run: RunFiles) -> float | None:
    """Gradients that the participants of the first round evaluate, probes before it included."""
    plan = _plan(run.path)
    return float(gradients_of_a_round(plan, run.records[0]["cohort"])[0])


def _error(phi1: Tensor, phi2: Tensor, w: Tensor) -> float:
    def cost(rates: Tensor) -> Tensor:
        point, total = w, ALPHA * rates.square().sum()
        for rate, gradient, mean in zip(rates, phi1, phi2, strict=True):
            point = point - rate * gradient
            total = total + (1.0 - ALPHA) * (point - mean).square().sum()
        return total

    zero = torch.zeros(len(phi1), dtype=phi1.dtype)
    hessian = torch.func.hessian(cost)(zero)
    slope = torch.func.grad(cost)(zero)
    numeric = -torch.linalg.solve(hessian, slope)
    closed = control_rates(phi1, phi2, w, ALPHA)
    return float((closed - numeric).norm() / numeric.norm().clamp_min(1e-30))


@cache
def _plan(path: Path) -> RunPlan:
    return build(RunFiles(path).config)


def _start(path: Path, model: str) -> Tensor:
    plan = _plan(path)
    if model == "first":
        return plan.initial.theta.double()
    task = plan.settings.task
    assert isinstance(task, ModuleTask), "a quadratic problem has no file of tensors"
    return task.pack(load_file(RunDir(path).model)).theta.double()


def _gradients(plan: RunPlan) -> Callable[[Tensor], Tensor]:
    """The members' mean of full local gradients at each row of ``points``."""
    task, world = plan.settings.task, plan.world
    held = [world.train(client, 0) for client in world.at(0).members]
    rows = torch.cat([data.rows for data in held])
    weight = torch.cat([torch.full((len(d),), 1.0 / len(d) / len(held)) for d in held]).double()
    batch = Batch(held[0].pool.x[rows], torch.cat([data.labels for data in held]))
    stats = plan.initial.stats

    def loss(theta: Tensor) -> Tensor:
        outputs = task.forward(theta.float(), batch, stats, True)
        return (task.row_losses(outputs, batch).double() * weight).sum()

    slope = torch.func.grad(loss)
    return lambda points: torch.stack([slope(point) for point in points])


@cache
def _first_walk(path: Path, model: str) -> Trajectory:
    plan, x = _plan(path), _start(path, model)
    gradient, points, slopes = _gradients(plan), [x], []
    for _ in range(plan.config.local.epochs):
        slopes.append(gradient(points[-1][None])[0])
        points.append(points[-1] - plan.config.local.lr * slopes[-1])
    return Trajectory(torch.stack(slopes), torch.stack(points))


@cache
def _swept(path: Path, model: str) -> Swept:
    gradients = _gradients(_plan(path))
    return pretrained(_first_walk(path, model), gradients, ALPHA, most=MOST, test="norm")


# ---- SPECIAL -------------------------------------------------------------------------------------
LOOKED_AT = (1, 5, 10, 20)  # rounds of a task
POWERS = 30  # products with the Hessian until its largest eigenvalue is taken as found


@dataclass(frozen=True)
class Played:
    """The models of a run, before its first round and after every one."""

    plan: RunPlan
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
    plan = build(RunFiles(path).config)
    player = Player(plan)
    models = [player.federation.models[0].theta.clone()]
    while not player.done:
        player.play()
        models.append(player.federation.models[0].theta.clone())
    return Played(plan, models)


def _stages(run: RunFiles) -> list[range]:
    """The rounds of every task."""
    found = [[i for i, r in enumerate(run.records) if r["task"] == t] for t in range(tasks(run))]
    return [range(rounds[0], rounds[-1] + 1) for rounds in found]


def _all_rows(run: RunFiles, played: Played) -> list[Batch]:
    """The rows of every task, of all members."""
    stages, world = _stages(run), played.plan.world
    return [played.rows(rounds, world.at(rounds.start).members) for rounds in stages]


@measure_of_model
def aligned_share(run: RunFiles) -> float | None:
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
def earlier_rise(run: RunFiles, *, after: int) -> float | None:
    """How much the mean loss of earlier tasks has risen since the start of a task, after some
    rounds of it; the mean over tasks."""
    found = [rise for _, rise, _ in _rises(run, (after,))]
    return fmean(found) if found else None


@measure_of_model
def rise_over_bound(run: RunFiles) -> float | None:
    """The largest ratio of that rise (after 1, 5, 10 and 20 rounds) to ``L/2 d^2``: what aligned
    gradients leave of the descent lemma, with L the largest eigenvalue of the Hessian at the start
    of the task and d the bound on the distance from it, ``eta_g D / lambda``."""
    found = [rise / bound for _, rise, bound in _rises(run, LOOKED_AT) if bound]
    return max(found) if found else None


def _rises(run: RunFiles, after: Sequence[int]) -> list[tuple[int, float, float]]:
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
def smallest_gradient(run: RunFiles) -> float | None:
    """The smallest squared norm of the gradient of all tasks' summed losses in the rounds of the
    last task."""
    played, rounds = _played(run.path), _stages(run)[-1]
    every = _all_rows(run, played)
    models = [played.models[index + 1] for index in rounds]
    return min(float((len(every) * played.gradient(m, every)).square().sum()) for m in models)


# ---- DynamicInit ---------------------------------------------------------------------------------
PROBE_RATE = 0.5  # times the session's rate, as released


@measure_of_model
def footprint_share(run: RunFiles, *, share: float, group: int = 0) -> float | None:
    """Distance of a group's footprint on a share of all members' rows to that on all rows, in
    percent of the distance to the other group's footprint. The run is the pilot: its last model is
    where probes begin. Distances are those of the released code (unit length a weight tensor).
    """
    plan, pilot = _pilot(run.path)
    other = 1 - group
    full, less = (_footprint(plan, pilot, group, s) for s in (1.0, share))
    far = _distance(plan, full, _footprint(plan, pilot, other, 1.0))
    return 100.0 * _distance(plan, full, less) / far if far else None


@cache
def _pilot(path: Path) -> tuple[RunPlan, Tensor]:
    plan = build(RunFiles(path).config)
    task = plan.settings.task
    assert isinstance(task, ModuleTask)
    return plan, task.pack(load_file(RunDir(path).model)).theta


@dataclass(frozen=True)
class Thinned:
    """A world in which members hold a share of their rows."""

    world: Any
    share: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def train(self, client: int, round: int) -> ClientData:
        data: ClientData = self.world.train(client, round)
        if self.share >= 1.0:
            return data
        draw = rng.generator(self.world.seed, rng.Purpose.DATA, client)
        count = max(1, round_half(self.share * len(data)))
        kept = torch.from_numpy(draw.permutation(len(data))[:count]).sort().values
        return ClientData(data.pool, data.rows[kept], data.labels[kept], float(count))


def round_half(value: float) -> int:
    return int(value + 0.5)


def _footprint(plan: RunPlan, pilot: Tensor, group: int, share: float) -> Tensor:
    """One rehearsed round from the pilot model by all members of a group, minus the pilot."""
    settings = replace(plan.settings, world=Thinned(plan.world, share))
    size = int(plan.config.world.options["members"]) // 2
    moment = replace(plan.world.at(0), members=range(group * size, (group + 1) * size), shift=None)
    rate = settings.rates(moment)[0]
    trial = Federation.fresh(settings, plan.initial, moment, rate)
    clients = ServerCalls(Round(trial, settings, moment), 0)
    return clients.rehearse(pilot, 1, PROBE_RATE * rate) - pilot


def _distance(plan: RunPlan, one: Tensor, other: Tensor) -> float:
    found = []
    for name, where in plan.settings.task.layout.slices.items():
        if "bias" not in name:
            a, b = (g[where] / torch.linalg.vector_norm(g[where]) for g in (one, other))
            found.append(float(torch.linalg.vector_norm(a - b)))
    return sum(found) / len(found)
