"""FedAgg's theorems, checked at the models of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.config.build import Plan, build
from shoal.parts.mean_field import Swept, Trajectory, control_rates, pretrained
from shoal.reproduce.measures import Reading, measure_of_model
from shoal.rundir import RunDir
from shoal.summary import gradients_of_a_round
from shoal.task import ModuleTask
from shoal.types import Batch

MOST = 100
ALPHA = 0.1


@measure_of_model
def fixed_point(
    run: Reading, *, model: Literal["first", "last"], what: Literal["sweeps", "rate"] = "sweeps"
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
def closed_form_error(run: Reading, *, instances: int = 100) -> float | None:
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
def gradients_a_round(run: Reading) -> float | None:
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
def _plan(path: Path) -> Plan:
    return build(Reading(path).config)


def _start(path: Path, model: str) -> Tensor:
    plan = _plan(path)
    if model == "first":
        return plan.initial.theta.double()
    task = plan.settings.task
    assert isinstance(task, ModuleTask), "a quadratic problem has no file of tensors"
    return task.pack(load_file(RunDir(path).model)).theta.double()


def _gradients(plan: Plan) -> Callable[[Tensor], Tensor]:
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
        points.append(points[-1] - plan.config.local.rate * slopes[-1])
    return Trajectory(torch.stack(slopes), torch.stack(points))


@cache
def _swept(path: Path, model: str) -> Swept:
    gradients = _gradients(_plan(path))
    return pretrained(_first_walk(path, model), gradients, ALPHA, most=MOST, test="norm")
