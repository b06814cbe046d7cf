"""``shoal evaluate``: the model of a run, scored again, on its own test rows or on a new file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shoal.config import load_run
from shoal.config.build import RunPlan, build
from shoal.config.subject import dataset_of, initial_of
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask, learnt_of
from shoal.core.types import ClientData, Model, Pool
from shoal.data.dataset import Dataset
from shoal.data.later_rows import later_rows, later_table
from shoal.metrics.evaluate import evaluate, evaluate_each, outputs_of
from shoal.metrics.functions import measured
from shoal.runs.directory import RunDir
from shoal.runs.origin import check_code, read_origin
from shoal.runs.stopping import told_of


def score(
    directory: Path, data: Path | None = None, best: bool = False, accept_code: bool = False
) -> dict[str, Any]:
    """``rows``, ``accuracy``, ``loss`` and ``metrics`` of a run's global model, and the accuracy of
    every member that the rows say they are of."""
    where = RunDir(directory)
    where.check_run()
    where.check_simulated()
    file = where.best if best else where.model
    if not file.exists():
        why = "start it with --keep-best" if best else f"finish it with: shoal resume {directory}"
        raise UserError(f"{directory} has no {file.name}; {why}")
    config = load_run(where.config)
    if config.problem is not None:
        raise UserError(f"{directory} is a run of a problem, which has no rows to score on")
    if data is not None and config.data.name != "files":
        raise UserError(f"--data: {directory} is a run on {config.data.name!r}, not on a table of "
                        "your own, so other rows cannot be read as its rows")  # fmt: skip
    check_code(where, read_origin(where.origin), config, accept_code)
    plan = build(config)
    model = _model(plan, file)
    out: dict[str, Any] = {"run": str(directory), "model": file.name}
    if best:
        out["best"] = told_of(file)
    if data is None:
        rows = plan.world.tests(plan.world.rounds - 1)
        return {**out, **_scores(plan, model, rows.get("global") or next(iter(rows.values())))}
    if not data.exists():
        raise UserError(f"--data: there is no file {data}")
    known = dataset_of(config)
    found = later_rows(known, later_table(known, data))
    pool = getattr(plan.world, "pool", None)
    if isinstance(pool, Pool) and found.test.x.shape[1:] != pool.x.shape[1:]:
        raise UserError(f"--data: rows of {data} have shape {tuple(found.shape)}, and the model "
                        f"takes {tuple(pool.x.shape[1:])}")  # fmt: skip
    members = _by_member(plan, model, found)
    return {**out, "data": str(data), **_scores(plan, model, _all(found.test)), **members}


def _model(plan: RunPlan, file: Path) -> Model:
    """The global model in a file."""
    task = plan.settings.task
    if not isinstance(task, ModuleTask) or plan.settings.method.only("initial_models") is not None:
        raise UserError(f"method {plan.settings.method.name!r} keeps several models, or trains a "
                        "network of its own making; score them with its run")  # fmt: skip
    choice = plan.config.model.model_copy(update={"init": str(file)})
    return initial_of(choice, task, plan.config.seed).to(plan.config.device)


def _all(pool: Pool) -> ClientData:
    rows = torch.arange(len(pool.y))
    return ClientData(pool, rows, pool.y, float(len(rows)))


def _scores(plan: RunPlan, model: Model, data: ClientData) -> dict[str, Any]:
    task, metrics = plan.settings.task, plan.config.evaluate.metrics
    found = evaluate(task, model, data)
    numbers = learnt_of(task).target == "number"
    out: dict[str, Any] = {"rows": len(data), "loss": found.loss}
    if not numbers:
        out["accuracy"] = found.accuracy
    if metrics:
        said = outputs_of(task, model, data)
        out["metrics"] = measured(metrics, said, learnt_of(task).ignored)
    return out


def _by_member(plan: RunPlan, model: Model, data: Dataset) -> dict[str, Any]:
    """Members by name, with their rows and accuracy."""
    if data.test_group is None or data.names is None:
        return {}
    every = _all(data.test)
    mine = [
        (int(g), torch.nonzero(data.test_group == g)[:, 0]) for g in torch.unique(data.test_group)
    ]
    parts = [ClientData(every.pool, rows, every.labels[rows], float(len(rows))) for _, rows in mine]
    found = evaluate_each(plan.settings.task, model, parts)
    name = "r2" if learnt_of(plan.settings.task).target == "number" else "accuracy"
    return {
        "members": {
            data.names[g]: {"rows": len(rows), "loss": s.loss, name: s.accuracy}
            for (g, rows), s in zip(mine, found, strict=True)
        }
    }
