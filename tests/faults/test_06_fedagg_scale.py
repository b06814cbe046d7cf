"""FedAgg's scale: the method by plain numpy loops, on drawn problems, against both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import support
import torch

from shoal import catalog
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.parts.mean_field_rates import ControlledRate
from shoal.papers.worked_examples.play import play, settings_of

Vector = Any  # an array of float64


def drawn(seed: int, **hyper: Any) -> dict[str, Any]:
    """A case of kind ``batches``: unequal clients in three dimensions, partial participation."""
    draw = np.random.default_rng(seed)
    batches = [
        [
            {"a": draw.uniform(0.3, 2.0, 3).tolist(), "b": draw.normal(0, 1, 3).tolist()}
            for _ in range(count)
        ]
        for count in (2, 4, 1, 3)
    ]
    settings = {
        "L": 3,
        "alpha": 0.3,
        "eta0": 0.05,
        "eta_min": 0.01,
        "eta_max": 0.2,
        "aggregation": "samples",
        "rounds": 3,
        "scale": "step",
    }
    return {
        "id": "drawn",
        "kind": "batches",
        "method": "FedAgg",
        "problem": {"batches": batches, "n": [2.0, 5.0, 1.0, 3.0]},
        "hyperparameters": settings | hyper,
        "w0": draw.normal(0, 1, 3).tolist(),
        "participation": [[0, 1, 3], [2, 3], [0, 1, 2, 3]],
    }


# ---- the method in numpy -------------------------------------------------------------------------
class ByHand:
    """Section by section of the specification; nothing of the library is used."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.hyper, self.case = case["hyperparameters"], case
        self.L = self.hyper["L"]
        self.m = self.hyper.get("momentum", 0.0)
        self.decay = self.hyper.get("weight_decay", 0.0)
        self.batches = [
            [(np.array(b["a"]), np.array(b["b"])) for b in own]
            for own in case["problem"]["batches"]
        ]

    def gradients(self, i: int, x: Vector) -> list[Vector]:
        return [a * (x - b) for a, b in self.batches[i]]

    def train(self, i: int, x: Vector, rates: Any) -> Vector:
        """Models around every epoch; ``rates`` is called with the epoch and the model there."""
        points, buffer = [x], np.zeros_like(x)
        for epoch in range(self.L):
            rate = rates(epoch, x)
            for a, b in self.batches[i]:
                buffer = self.m * buffer + a * (x - b) + self.decay * x
                x = x - rate * buffer
            points.append(x)
        return np.array(points)

    def follow(self, i: int, x: Vector, phi1: Vector, rates: Any) -> Vector:
        points = [x]
        for epoch in range(self.L):
            rate = rates(epoch, x)
            for _ in self.batches[i]:
                x = x - rate * phi1[epoch] / len(self.batches[i])
            points.append(x)
        return np.array(points)

    def probe(self, w: Vector, cohort: list[int], rates: Vector) -> tuple[Vector, Vector]:
        paths = [self.train(i, w, lambda epoch, x: rates[epoch]) for i in cohort]
        sums = [(p[:-1] - p[1:]) / rates[:, None] for p in paths]
        return np.mean(sums, 0), np.mean(paths, 0)

    def solve(self, phi1: Vector, phi2: Vector, w: Vector, first: int) -> Vector:
        c, at = (1 - self.hyper["alpha"]) / self.hyper["alpha"], range(first, self.L)
        A = np.array(
            [
                [float(p == q) + c * (self.L - max(p, q)) * (phi1[p] @ phi1[q]) for q in at]
                for p in at
            ]
        )
        b = np.array(
            [c * ((self.L - p) * (phi1[p] @ w) - phi1[p] @ phi2[p + 1 :].sum(0)) for p in at]
        )
        return np.linalg.solve(A, b)

    def clip(self, raw: Vector) -> Vector:
        return np.clip(raw, self.hyper["eta_min"], self.hyper["eta_max"])

    def terms(self, w: Vector, cohort: list[int]) -> tuple[Vector, Vector]:
        rates = np.full(self.L, self.hyper["eta0"])
        for _ in range(self.hyper.get("probe_passes", 1)):
            phi1, phi2 = self.probe(w, cohort, rates)
            rates = self.clip(self.solve(phi1, phi2, w, 0))
        return phi1, phi2

    def chooser(self, phi1: Vector, phi2: Vector, w: Vector, own: list[float]) -> Any:
        """The rate of an epoch as a function of it and the model there; ``own`` keeps them."""

        def rate(epoch: int, x: Vector) -> float:
            if self.hyper.get("feedback") == "closed loop":
                raw = self.solve(phi1, phi2, x, epoch)[0]
            else:
                raw = self.solve(phi1, phi2, w, 0)[epoch]
            own.append(float(self.clip(raw)))
            return own[-1]

        return rate

    def play(self) -> tuple[list[Vector], list[dict[int, Vector]]]:
        w, n = np.array(self.case["w0"]), np.array(self.case["problem"]["n"])
        models, used, remembered = [], [], None
        for cohort in self.case["participation"]:
            phi1, phi2 = remembered or self.terms(w, cohort)
            phi2 = w + (phi2 - phi2[0])
            rates: dict[int, list[float]] = {}
            ends, sums, paths = [], [], []
            for i in cohort:
                own = rates.setdefault(i, [])

                rate = self.chooser(phi1, phi2, w, own)
                if self.hyper.get("direction") == "mean":
                    path = self.follow(i, w, phi1, rate)
                else:
                    path = self.train(i, w, rate)
                ends.append(path[-1])
                paths.append(path)
                sums.append((path[:-1] - path[1:]) / np.array(own)[:, None])
            if self.hyper.get("phi") == "history":
                remembered = np.mean(sums, 0), np.mean(paths, 0)
            w = np.average(ends, axis=0, weights=n[cohort])
            models.append(w)
            used.append({i: np.array(own) for i, own in rates.items()})
        return models, used


OPTIONS: dict[str, dict[str, Any]] = {
    "open loop": {},
    "closed loop": {"feedback": "closed loop"},
    "three passes": {"probe_passes": 3},
    "mean direction": {"direction": "mean"},
    "mean direction, closed loop": {"direction": "mean", "feedback": "closed loop"},
    "history": {"phi": "history"},
    "history, closed loop": {"phi": "history", "feedback": "closed loop"},
    "history, mean direction": {"phi": "history", "direction": "mean"},
}
LOCAL: dict[str, dict[str, float]] = {
    "plain": {},
    "momentum, decay": {"momentum": 0.6, "weight_decay": 0.1},
}


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_step_is_what_numpy_does(options: dict[str, Any], local: dict[str, float]) -> None:
    case = drawn(len(options) + 7, **options, **local)
    models, used = ByHand(case).play()
    settings = settings_of(case)
    history = play(settings)
    np.testing.assert_allclose(history.models, models, rtol=0, atol=1e-12)
    for now, right in zip(history.payloads(ControlledRate), used, strict=True):
        assert sorted(now) == [str(i) for i in sorted(right)]
        for i, rates in right.items():
            np.testing.assert_allclose(now[str(i)][1].numpy(), rates, rtol=0, atol=1e-12)
    inside = [rate for now in used for own in now.values() for rate in own]
    assert any(0.0101 < rate < 0.199 for rate in inside)  # not all of them are clipped
    engine = Stacked()
    stacked = support.play(settings, engine, 3)[2]
    assert not engine.notes  # no fall-back to the loop
    np.testing.assert_allclose(torch.stack(stacked).numpy(), models, rtol=0, atol=1e-9)


def test_eq_14_holds_along_the_mean_path_of_a_probe() -> None:
    case = drawn(3, momentum=0.5, weight_decay=0.05)
    history = play(settings_of(case))
    phi1, phi2 = history.rounds[0].sent[history.index(ControlledRate)]
    torch.testing.assert_close(phi2[1:], phi2[:-1] - 0.05 * phi1, rtol=1e-12, atol=1e-12)


def test_rates_stay_near_the_base_rate_and_epoch_s_grow_with_the_batches() -> None:
    """Identical clients: eta0 times the batches under ``epoch``, eta0 under ``step``."""

    def first(batches: int, scale: str) -> float:
        same = [{"a": [1.0], "b": [0.0]}] * batches
        hyper = {"L": 3, "alpha": 0.1, "eta0": 0.02, "eta_min": 1e-4, "eta_max": 0.999}
        case = drawn(1) | {
            "problem": {"batches": [same, same], "n": [1.0, 1.0]},
            "hyperparameters": hyper | {"aggregation": "uniform", "rounds": 1, "scale": scale},
            "w0": [1.0],
            "participation": [[0, 1]],
        }
        sent = play(settings_of(case)).payloads(ControlledRate)[0]
        return float(sent["0"][1][0])

    by_epoch = [first(batches, "epoch") for batches in (1, 4, 16)]
    np.testing.assert_allclose(by_epoch, [0.02, 0.078, 0.28], rtol=0.03)
    np.testing.assert_allclose([first(b, "step") for b in (1, 4, 16)], [0.02] * 3, rtol=6e-3)


def test_literal_terms_are_sums_over_an_epoch_too() -> None:
    """One batch per epoch: both scales are one method; several: phi1 is that many times as long."""
    one = drawn(5) | {"participation": [[0, 1]] * 3}
    one["problem"] = {"batches": [b[:1] for b in one["problem"]["batches"][:2]], "n": [1.0, 3.0]}
    for options in ({"phi": "literal"}, {"phi": "history"}, {"direction": "mean"}, {}):
        runs = []
        for scale in ("step", "epoch"):
            case = one | {"hyperparameters": one["hyperparameters"] | options | {"scale": scale}}
            runs.append(play(settings_of(case)).models)
        np.testing.assert_allclose(*runs, rtol=0, atol=1e-12)
    many = drawn(5, phi="literal")
    many["problem"]["batches"] = [own[:1] * 4 for own in many["problem"]["batches"]]
    lengths = []
    for scale in ("step", "epoch"):
        case = many | {"hyperparameters": many["hyperparameters"] | {"scale": scale}}
        history = play(settings_of(case))
        lengths.append(float(history.rounds[0].sent[0].phi1[0].norm()))
    assert 3.0 < lengths[0] / lengths[1] < 4.0


@pytest.mark.parametrize("options", [{}, {"direction": "mean"}, {"phi": "history"}])
@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
def test_engines_agree_on_a_network(options: dict[str, Any], local: dict[str, float]) -> None:
    method = catalog.fedagg(epochs=2, **options)
    world = support.SmallWorld(rows=(12, 7, 20), dtype=torch.float64)
    task = support.small_task(world=world, dtype=torch.float64)
    chosen = support.settings_for(method, world, task, participation=4)
    optimizer = replace(chosen.program.optimizer, **local)
    chosen = replace(chosen, program=replace(chosen.program, optimizer=optimizer))
    engine = Stacked()
    by_loop, by_stack = (support.play(chosen, e, 2)[2][-1] for e in (Loop(), engine))
    assert not engine.notes
    torch.testing.assert_close(by_stack, by_loop, rtol=1e-9, atol=1e-9)
