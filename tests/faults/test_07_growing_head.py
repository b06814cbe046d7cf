"""SPECIAL and SPECIAL-C with classes that come later: rows that no task has taught are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.models.registry import model
from shoal.papers.worked_examples.run import verify_case

Floats = list[list[float]]


def plain(case: dict[str, Any]) -> tuple[Floats, list[list[bool]]]:
    """Both methods on quadratics in plain numpy: the model after every round, what was pulled."""
    problem, hyper = case["problem"], case["hyperparameters"]
    w, out, masks, seen = np.array(case["w0"]), [], [], set[int]()
    rounds = iter(case["participation"])
    for i, task in enumerate(problem["tasks"]):
        point, pulled = w, np.full(len(w), i > 0)
        for number, row in enumerate(problem["head_rows"]):
            if number not in seen:
                pulled[row] = False
        a, b = np.array(task["a"]), np.array(task["b"])
        for _ in range(hyper["rounds_per_task"]):
            moves = []
            for c in next(rounds):
                x = w
                for _ in range(hyper["E"]):
                    x = x - hyper["eta"] * a[c] * (x - b[c])
                    if case["method"] == "SPECIAL-C":
                        two = 2 * hyper["lambda"]
                        x = np.where(pulled, (x + two * point) / (1 + two), x)
                moves.append(x - w)
            w = w + np.mean(moves, 0) / (i + 1)
            if case["method"] == "SPECIAL":
                lam = hyper["lambda"]
                w = np.where(pulled, (w + lam * point) / (1 + lam), w)
            out.append(w.tolist())
        masks.append(pulled.tolist())
        seen |= set(problem["task_classes"][i])
    return out, masks


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["SPECIAL", "SPECIAL-C"])
def test_drawn_tasks_are_hit(method: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [[1, 5], [2], [3, 6], [4]] if seed % 2 else [[6], [5], [4], [3]]
    tasks = [
        {"a": draw.uniform(0, 2, (3, 7)).tolist(), "b": draw.normal(size=(3, 7)).tolist(),
         "n": [1.0, 2.0, 3.0]}
        for _ in range(3)
    ]  # fmt: skip
    classes = [[0, 1], [2, 0], [1, 3]] if seed < 3 else [[3], [3, 1], [0, 2]]
    hyper = {"E": 2, "eta": 0.1, "lambda": 0.3, "rounds_per_task": 2, "new_rows": "free",
             "aggregation": "uniform", "gamma_G": "1/i"}  # fmt: skip
    case: dict[str, Any] = {
        "id": "drawn", "kind": "tasks", "method": method, "w0": draw.normal(size=7).tolist(),
        "problem": {"tasks": tasks, "layout": [["b.weight", 3], ["h.weight", 4]],
                    "head_rows": rows, "task_classes": classes},
        "participation": [sorted(draw.choice(3, 2, replace=False).tolist()) for _ in range(6)],
        "hyperparameters": hyper,
    }  # fmt: skip
    models, masks = plain(case)
    case |= {"expected_global": models, "expected_extra": {"anchored": masks}}
    result = verify_case(case, 1e-9)
    assert result.status == "ok", result.problems


# ---- networks ------------------------------------------------------------------------------------
def run(method: Any, world: dict[str, Any], engine: str = "loop", net: Any = "mlp") -> Any:
    return shoal.run(
        seed=0, data="digits", model=net, method=["fedavg", method], engine=engine,
        world={"members": 4, "partition": "iid", "rounds_per_stage": 2, **world},
        local={"epochs": 1, "steps": 2, "batch": 16, "lr": 0.1},
        evaluate={"rows": "test_all"},
    )  # fmt: skip


LATER = {"name": "classes", "classes": [[0, 1, 2], [3, 4], [5, 6, 7, 8, 9]]}


@pytest.mark.parametrize("name", ["special", "special_c"])
def test_with_a_huge_weight_old_rows_stand_still_and_new_ones_learn(name: str) -> None:
    held = {**LATER, "classes": [[0, 1, 2, 5, 6, 7, 8, 9], [3, 4]]}
    one = run({name: {"lam": 1e9}}, {**held, "classes": held["classes"][:1]})
    both = run({name: {"lam": 1e9}}, held)
    weights = [r.model[list(r.model)[-2]] for r in (one, both)]
    old = [0, 1, 2, 5, 6, 7, 8, 9]
    assert torch.allclose(weights[0][old], weights[1][old], atol=1e-5)
    assert not torch.allclose(weights[0][[3, 4]], weights[1][[3, 4]], atol=1e-3)
    stuck = run({name: {"lam": 1e9, "new_rows": "anchored"}}, held)
    last = stuck.model[list(stuck.model)[-2]]
    assert torch.allclose(weights[0], last, atol=1e-5)


@pytest.mark.parametrize("name", ["special", "special_c"])
def test_engines_agree(name: str) -> None:
    a, b = (run({name: {"lam": 0.5}}, LATER, engine) for engine in ("loop", "stacked"))
    for key, value in a.model.items():
        assert torch.allclose(value, b.model[key], atol=1e-5)


@pytest.mark.parametrize("name", ["special", "special_c"])
def test_where_every_task_has_all_classes_nothing_is_free(name: str) -> None:
    domains = {"name": "domains", "domains": ["plain", "inverted"]}
    free, held = (run({name: {"new_rows": rule}}, domains) for rule in ("free", "anchored"))
    assert all(torch.equal(value, held.model[key]) for key, value in free.model.items())
    assert free.rounds[-1]["bytes_down"] == held.rounds[-1]["bytes_down"]


def test_rows_of_the_head_are_found() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    task = ModuleTask(lambda: net, classes=3)
    wanted = [-1] * 15 + [0, 0, 0, 1, 1, 1, 2, 2, 2] + [0, 1, 2]
    assert task.class_rows is not None and task.class_rows.tolist() == wanted
    assert ModuleTask(lambda: nn.Linear(4, 3, bias=False), classes=3).class_rows is not None


@model("headless_for_test")
def headless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2 * classes), nn.GLU())


def test_a_head_that_is_not_found_is_refused() -> None:
    with pytest.raises(UserError, match="head was not found.*new_rows: anchored"):
        run("special", LATER, net="headless_for_test")
    run({"special": {"new_rows": "anchored"}}, LATER, net="headless_for_test")


def test_special_c_keeps_the_last_tasks_model_and_that_is_counted() -> None:
    domains = {"name": "domains", "domains": ["plain", "inverted"]}
    kept = {name: run(name, domains).summary["cost"] for name in ("special", "special_c")}
    assert kept["special"]["client"] == 0.0
    assert kept["special_c"]["client"] == pytest.approx(1.0, abs=0.01)  # with the working copy, 2x
