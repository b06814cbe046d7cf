"""Drawn cases by plain numpy: compositions, unequal mini-batches, early stopping, many models."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from papers.worked_examples.by_numpy import Base
from papers.worked_examples.drawn import BASES, Case, batches, checked, data_of, weights_of


def towards(x: Any, at: Any, on: Any, strength: float) -> Any:
    return np.where(on, (x + strength * at) / (1 + strength), x)


@pytest.mark.parametrize("kind", ["SPECIAL", "SPECIAL-C"])
@pytest.mark.parametrize("base", [b for b in BASES if b not in ("SCAFFOLD", "FedCM", "FedDC")])
def test_tasks_that_bring_classes_over_other_methods(base: str, kind: str) -> None:
    for seed in range(2):
        draw = np.random.default_rng(seed)
        n, per_epoch, lam = [1.0, 4.0, 2.0], 1 + 2 * seed, 0.3
        tasks = [
            {"a": draw.uniform(0.1, 2, (3, 7)).tolist(), "b": draw.normal(size=(3, 7)).tolist(),
             "n": n}
            for _ in range(3)
        ]  # fmt: skip
        hyper = {
            "E": 2, "steps_per_epoch": per_epoch, "eta": 0.05, "rounds_per_task": 2,
            "aggregation": "samples", "gamma_G": "1/i", "momentum": 0.5 * (base != "FedNova"),
            "weight_decay": 0.1 * seed, **BASES[base], "lambda": lam,
        }  # fmt: skip
        rows, classes = [[1, 5], [2], [3, 6], [4]], [[0, 1], [2, 0], [1, 3]]
        cohorts = [sorted(draw.choice(3, 2, replace=False).tolist()) for _ in range(6)]
        case: Case = {
            "id": "drawn", "kind": "tasks", "method": f"{base} + {kind}",
            "problem": {"tasks": tasks, "layout": [["b.weight", 3], ["h.weight", 4]],
                        "head_rows": rows, "task_classes": classes},
            "participation": cohorts, "hyperparameters": hyper, "w0": draw.normal(size=7).tolist(),
        }  # fmt: skip
        w, models, on_clients = np.array(case["w0"]), [], kind == "SPECIAL-C"
        method, strength = Base(base, hyper, w), lam * (1 + on_clients)
        for i, task in enumerate(tasks):
            seen = {c for earlier in classes[:i] for c in earlier}
            pulled = np.full(7, i > 0)
            for c in set(range(4)) - seen:
                pulled[rows[c]] = False
            pull = partial(towards, at=w, on=pulled, strength=strength)
            for cohort in cohorts[2 * i : 2 * i + 2]:
                slopes, centres = np.array(task["a"]), np.array(task["b"])
                data = {c: [(slopes[c], centres[c])] * per_epoch for c in cohort}
                weights, own = [n[c] for c in cohort], pull if on_clients else None
                w = method.round(w, data, weights, 0.05, range(3), 1 / (i + 1), own)
                w = w if on_clients else pull(w)
                models.append(w)
        checked(case, models)


UNEQUAL = {
    **BASES, "FedSAM": {"rho": 0.1}, "FedNova, momentum": {"rho": 0.5},
    "FedNova, proximal": {"mu": 0.5}, "SCAFFOLD, full gradients": {"option": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_numbers_of_batches(name: str) -> None:
    method = name.split(",")[0]
    local = {} if method in ("FedNova", "FedCM") else {"momentum": 0.5, "weight_decay": 0.1}
    for seed in range(2):
        case = batches(seed, method, E=2, eta=0.05, **local, **UNEQUAL[name])
        hyper, data, w = case["hyperparameters"], data_of(case), np.array(case["w0"])
        by_hand, models = Base(method, hyper, w), []
        for cohort in case["participation"]:
            weights = weights_of(hyper, [case["problem"]["n"][i] for i in cohort])
            w = by_hand.round(w, {i: data[i] for i in cohort}, weights, 0.05, range(4))
            models.append(w)
        checked(case, models)


def test_a_case_of_steps_without_a_cap_has_none() -> None:
    """Every client of a step finds its data elsewhere: a new model per step, five in the end."""
    steps = [{"a": [[1.0]], "b": [[4.0**k * (-1) ** k]], "n": [1.0]} for k in range(5)]
    hyper = {"K": 1, "eta": 0.1, "rounds_per_step": 1, "delta": 0.1, "score": "loss",
             "new_model": "copy", "aggregation": "samples"}  # fmt: skip
    case: Case = {"id": "drawn", "kind": "steps", "method": "FedDrift-Eager", "w0": [0.0],
                  "problem": {"steps": steps}, "hyperparameters": hyper}  # fmt: skip
    models, rows = [0.0], []
    for k, step in enumerate(steps):
        b = step["b"][0][0]
        if k:
            models.append(min(models, key=lambda w, b=b: (w - b) ** 2))
        models[-1] -= 0.1 * (models[-1] - b)
        rows.append({"step": k, "assign": {"0": k}, "models": [[w] for w in models]})
    checked(case, per_step=rows)


# ---- FLASH: clients that stop early, over every base ---------------------------------------------
def early_stopped(data: Any, w: Any, hyper: dict[str, Any]) -> tuple[Any, int]:
    """A client's displacement, and after how many epochs it stopped."""

    def loss(x: Any) -> float:
        return float(np.mean([0.5 * (a * (x - b) ** 2).sum() for a, b in data]))

    x, before, epoch = w, loss(w) if hyper["l0"] == "received" else np.inf, 0
    while epoch < hyper["E"]:
        epoch += 1
        for a, b in data:
            x = x - hyper["eta"] * a * (x - b)
        now = loss(x)
        if before - now < hyper["gamma"] / epoch:
            break
        before = now
    return x - w, epoch


@pytest.mark.parametrize("seed", range(6))
def test_early_stopping_on_mini_batches(seed: int) -> None:
    hyper = {
        "E": 5, "eta": 0.05, "gamma": [0.1, 0.4, 1.0][seed % 3],
        "l0": ["received", "inf"][seed % 2],
        "beta1": 0.9, "beta2": 0.6, "tau": 1e-3, "eta_g": 0.05, "base": ["adam", "yogi"][seed % 2],
    }  # fmt: skip
    case = batches(seed, "FLASH", **hyper)
    hyper, data, w = case["hyperparameters"], data_of(case), np.array(case["w0"])
    server, models, rows = Base("FLASH", hyper, w), [], []
    for cohort in case["participation"]:
        moves, epochs = zip(*[early_stopped(data[i], w, hyper) for i in cohort], strict=True)
        weights = weights_of(hyper, [case["problem"]["n"][i] for i in cohort])
        w = server.stepped(w, np.average(moves, axis=0, weights=weights), 1.0, cohort)
        models.append(w)
        rows.append({"epochs": list(epochs), "d": server.d.tolist(), "v": server.v.tolist()})
    checked(case, models, per_round=rows)
