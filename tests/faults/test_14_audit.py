"""Parts against papers and specification: what an audit found, and drawn cases by plain numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import torch
from papers.worked_examples.by_numpy import Base, Data
from papers.worked_examples.drawn import BASES, Case, batches, checked, data_of, weights_of

import shoal
from shoal import catalog
from shoal.config.read import read
from shoal.core.errors import UserError
from shoal.engines.stacked.engine import Stacked
from shoal.methods.parts.mean_field_rates import ControlledRate
from shoal.papers.cells import cells_of
from shoal.papers.recipe import Recipe, load_recipe
from shoal.papers.worked_examples.play import play, settings_of


# ---- recipes -------------------------------------------------------------------------------------
def recipes() -> Iterator[Recipe]:
    for path in sorted((Path(shoal.__file__).parents[1] / "recipes").rglob("*.yaml")):
        if {"axes", "extends"} & set(read(path)[0]):
            yield load_recipe(path)


def test_every_recipe_asks_for_what_methods_take() -> None:
    """``P: 0``, a baseline without a pilot, was refused, and with it most of a paper's tables."""
    found = {}
    for recipe in recipes():
        for variant in recipe.variants:
            for cell in cells_of(recipe, variant):
                method = cell.config(0).method
                found[str(method)] = method
    for method in found.values():
        catalog.build(method)
    assert any("'P': 0" in text for text in found)
    with pytest.raises(UserError, match="dynamic_init.P must be a whole number of at least 1"):
        catalog.build({"dynamic_init": {"P": 0}})


# ---- sessions: what begins anew, and buffers -----------------------------------------------------
def sessions(seed: int, base: str) -> Case:
    draw = np.random.default_rng(seed)
    groups = [
        {
            "a": draw.uniform(0.3, 2, (m, 4)).tolist(),
            "b": draw.normal(0, 2, (m, 4)).tolist(),
            "n": draw.integers(1, 5, m).astype(float).tolist(),
            "stats": draw.uniform(0.1, 3, (m, 3)).tolist(),
        }
        for m in (2, 3)
    ]
    pilots, local = 1 + seed % 3, base in ("FedAvg", "FedAvgM", "FedACG", "FedAdam", "FLASH")
    hyper = {
        "P": pilots, "V": 1 + seed % 2, "T": 2, "K": 2, "eta": 0.1, "probe_eta": 0.07,
        "R": draw.uniform(1, 6), "similarity": ["l2", "per_tensor_normalized"][seed % 2],
        "first_session": ["initial", "latest"][seed // 2 % 2],
        "aggregation": ["samples", "uniform"][seed // 3 % 2],
        "momentum": 0.5 * local, "weight_decay": 0.1 * local,
    } | BASES[base]  # fmt: skip
    return {
        "id": "drawn", "kind": "sessions", "method": f"{base} + DynamicInit",
        "w0": draw.normal(0, 1, 4).tolist(), "hyperparameters": hyper,
        "problem": {
            "groups": groups, "session_group": [0, 1, 0, 1, 1, 0][: pilots + 3],
            "layout": [["l.weight", 2], ["l.bias", 1], ["o.weight", 1]],
            "buffers": {"layout": [["mean", 1], ["var", 2]], "init": [0.0, 1.0, 1.0],
                        "momentum": 0.3},
        },
    }  # fmt: skip


def distance(a: Any, b: Any, similarity: str) -> float:
    if similarity == "l2":
        return float(np.linalg.norm(a - b))
    tensors = [slice(0, 2), slice(3, 4)]  # the bias is left out
    units = [[g[t] / np.linalg.norm(g[t]) for t in tensors] for g in (a, b)]
    return float(np.mean([np.linalg.norm(x - y) for x, y in zip(*units, strict=True)]))


def sessions_by_hand(case: Case) -> list[dict[str, Any]]:
    hyper, problem, base = case["hyperparameters"], case["problem"], case["method"].split(" + ")[0]
    given, w0 = problem["buffers"], np.array(case["w0"])

    def rounds(of: Base, model: Any, g: int, count: int, rate: float) -> Any:
        (w, r), group = model, problem["groups"][g]
        shares = np.array(weights_of(hyper, group["n"])) / sum(weights_of(hyper, group["n"]))
        pairs = zip(group["a"], group["b"], strict=True)
        clients = {10 * g + i: [(np.array(a), np.array(b))] for i, (a, b) in enumerate(pairs)}
        for _ in range(count):
            w = of.round(w, clients, shares, rate, list(clients))
            keep = (1 - given["momentum"]) ** hyper["K"]
            r = keep * r + (1 - keep) * (shares @ np.array(group["stats"]))
        return w, r

    method, model = Base(base, hyper, w0), (w0, np.array(given["init"]))
    pilots, last, probes, out = [], [], [], []
    for s, g in enumerate(problem["session_group"]):
        row: dict[str, Any] = {"session": s}
        method.begin()
        if s >= hyper["P"]:
            pilot = tuple(np.mean([ended[k] for ended in pilots], 0) for k in (0, 1))
            probe = Base(base, hyper, pilot[0])
            probes.append(rounds(probe, pilot, g, hyper["V"], hyper["probe_eta"])[0] - pilot[0])
            row["G"] = probes[-1].tolist()
        if s == hyper["P"] and hyper["first_session"] == "initial":
            model = w0, np.array(given["init"])
        elif s > hyper["P"]:
            far = [distance(probes[-1], past, hyper["similarity"]) for past in probes[:-1]]
            alpha = np.exp(-hyper["R"] * np.array(far))
            alpha = alpha / alpha.sum()
            model = tuple(alpha @ np.array([ended[k] for ended in last]) for k in (0, 1))
            row["alpha"] = alpha.tolist()
        row |= {"w_init": model[0].tolist(), "buffers_init": model[1].tolist()}
        model = rounds(method, model, g, hyper["T"], hyper["eta"])
        row |= {"w_last": model[0].tolist(), "buffers_last": model[1].tolist()}
        (pilots if s < hyper["P"] else last).append(model)
        out.append(row)
    return out


@pytest.mark.parametrize("base", list(BASES))
def test_every_session_begins_with_fresh_server_states(base: str) -> None:
    """Pilot sessions did not: momenta and variates ran on from one to the next."""
    for seed in range(6):
        case = sessions(seed, base)
        checked(case, sessions=sessions_by_hand(case))


# ---- FedAgg: the probe of ``scale: epoch`` -------------------------------------------------------
def probed(data: list[Data], cohort: list[int], w: Any, rates: Any, decay: float) -> Any:
    """Mean full gradients before epochs and mean models around them, along own gradients."""
    gradients, paths = [], []
    for own in (data[i] for i in cohort):
        x, path, seen = w, [w], []
        for rate in rates:
            seen.append(np.mean([a * (x - b) for a, b in own], 0) + decay * x)
            for a, b in own:
                x = x - rate * (a * (x - b) + decay * x)
            path.append(x)
        gradients.append(seen)
        paths.append(path)
    return np.mean(gradients, 0), np.mean(paths, 0)


def solved(phi1: Any, phi2: Any, w: Any, alpha: float) -> Any:
    c, L = (1 - alpha) / alpha, len(phi1)
    left = [[L - max(p, q) for q in range(L)] for p in range(L)]
    right = [c * ((L - p) * phi1[p] @ w - phi1[p] @ phi2[p + 1 :].sum(0)) for p in range(L)]
    return np.linalg.solve(np.eye(L) + c * np.array(left) * (phi1 @ phi1.T), right)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_weights_decay_along_the_probe_as_in_its_gradients(passes: int) -> None:
    hyper = {"L": 3, "alpha": 0.3, "eta0": 0.05, "eta_min": 0.01, "eta_max": 0.5, "scale": "epoch"}
    local = {"weight_decay": 0.1, "momentum": 0.5}
    case = batches(passes, "FedAgg", **hyper, **local, probe_passes=passes)
    data, cohort, w = data_of(case), case["participation"][0], np.array(case["w0"])
    rates = np.full(3, 0.05)
    for _ in range(passes):
        phi1, phi2 = probed(data, cohort, w, rates, 0.1)
        raw = solved(phi1, phi2, w, 0.3)
        rates = np.clip(raw, 0.01, 0.5)
    settings = settings_of(case)
    history = play(settings)
    sent = history.rounds[0].sent[history.index(ControlledRate)]
    np.testing.assert_allclose(sent.phi1, phi1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sent.phi2, phi2, rtol=0, atol=1e-12)
    np.testing.assert_allclose(history.payloads(ControlledRate)[0]["0"][0], raw, rtol=0, atol=1e-11)
    engine = Stacked()
    stacked = support.play(settings, engine, 3)[2]
    assert not engine.notes
    np.testing.assert_allclose(torch.stack(stacked), history.models, rtol=0, atol=1e-9)


# ---- compositions that dropped something ---------------------------------------------------------
def test_a_factor_of_the_rate_counts_on_either_side_of_who_sets_it() -> None:
    """To the left of it, it was lost: AdaptiveFedAvg then did nothing."""
    hyper = {"L": 2, "alpha": 0.3, "eta0": 0.05, "scale": "step"}
    names = ("AdaptiveFedAvg + FedAgg", "FedAgg + AdaptiveFedAvg", "FedAgg")
    left, right, alone = (play(settings_of(batches(0, name, **hyper))).models for name in names)
    assert left == right and not np.allclose(left[-1], alone[-1], atol=1e-6)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("fednova", {"momentum": 0.9}, r"momentum of 0, .* train with 0.9; .* rho: 0.9"),
    ({"fednova": {"mu": 0.1}}, {"momentum": 0.9}, "NormalizedProgress reckons with"),
    ({"fednova": {"rho": 0.5}}, {"momentum": 0.9}, r"local.momentum is 0.9, .* of its own \(Sgd"),
    ({"fednova": {"rho": 0.5}}, {"weight_decay": 0.1}, "local.weight_decay is 0.1"),
    ({"fednova": {"rho": 0.5}}, {"clip": 1.0}, "local.clip is 1.0"),
    ("fedcil", {"optimizer": "adamw"}, r"local.optimizer is adamw, .* \(AlternatingAdam\)"),
]


@pytest.mark.parametrize(("method", "local", "said"), REFUSED)
def test_a_local_optimiser_that_would_be_passed_over_is_refused(
    method: Any, local: dict[str, Any], said: str
) -> None:
    def run(method: Any, local: dict[str, Any]) -> Any:
        return shoal.run(
            seed=0, data="digits", model="linear", method=method, engine="loop",
            world={"name": "static", "members": 2, "partition": "iid", "rounds": 1},
            local={"epochs": 1, "steps": 1, "batch": 8, "lr": 0.1, **local},
            evaluate={"rows": "test_all"},
        )  # fmt: skip

    with pytest.raises(UserError, match=said):
        run(method, local)
    run(method, {})
    run("fedavg", local)
