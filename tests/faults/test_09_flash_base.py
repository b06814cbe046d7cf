"""FLASH on a base optimiser of choice, by plain numpy and by its laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from papers.worked_examples.small_world import SmallWorld, run, trajectory

from shoal import catalog
from shoal.methods.parts.adaptive_work import EarlyStop
from shoal.methods.parts.remembered_rates import RememberedRate
from shoal.methods.parts.server_optimizers import DriftAware
from shoal.papers.worked_examples.play import play, settings_of

BASES = ("adam", "yogi", "adagrad")


def drawn(seed: int, **hyper: Any) -> dict[str, Any]:
    """Two tasks of three clients, not all of whom take part."""
    draw = np.random.default_rng(seed)
    tasks = [
        {
            "a": draw.uniform(0.3, 2.0, (3, 2)).tolist(),
            "b": draw.normal(0, 3, (3, 2)).tolist(),
            "n": [1.0, 2.0, 4.0],
        }
        for _ in range(2)
    ]
    settings = {"E": 2, "eta": 0.1, "eta_g": 0.05, "beta2": 0.6, "tau": 1e-3, "gamma": None}
    return {
        "kind": "tasks",
        "method": "FLASH",
        "problem": {"tasks": tasks},
        "hyperparameters": settings | {"aggregation": "samples", "rounds_per_task": 3} | hyper,
        "w0": draw.normal(0, 1, 2).tolist(),
        "participation": [[0, 1, 2], [0, 2], [1], [0, 1, 2], [1, 2], [0]],
    }


def by_hand(case: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Models and ``d`` after every round."""
    hyper, w = case["hyperparameters"], np.array(case["w0"])
    base, tau = hyper["base"], hyper["tau"]
    b1, b2 = hyper.get("beta1", 0.0 if base == "adagrad" else 0.9), hyper["beta2"]
    m, d = np.zeros(2), np.zeros(2)
    v = np.full(2, tau**2 if hyper.get("v_init") == "tau**2" else hyper.get("v_init", 0.0))
    models, ds = [], []
    for t, cohort in enumerate(case["participation"], 1):
        task = case["problem"]["tasks"][(t - 1) // 3]
        moves = []
        for i in cohort:
            x = w
            for _ in range(hyper["E"]):
                x = x - hyper["eta"] * np.array(task["a"][i]) * (x - np.array(task["b"][i]))
            moves.append(x - w)
        D = np.average(moves, axis=0, weights=np.array(task["n"])[cohort])
        m = b1 * m + (1 - b1) * D
        if base == "adam":
            new = b2 * v + (1 - b2) * D**2
        elif base == "yogi":
            new = v - (1 - b2) * D**2 * np.sign(v - D**2)
        else:
            new = v + D**2
        before, after = v, new
        if base == "adagrad" and hyper.get("disparity", "moment") == "moment":
            before, after = (v / (t - 1) if t > 1 else np.zeros(2)), new / t
        scale = np.abs(D**2 - after) + np.abs(before)
        b3 = np.array([np.abs(b) / s if s > 0 else 1.0 for b, s in zip(before, scale, strict=True)])
        d = b3 * d + (1 - b3) * (D**2 - after)
        v = new
        gap = np.sqrt(v) - d
        if hyper.get("guard", True):
            gap = np.maximum(gap, 0)
        w = w + hyper["eta_g"] * m / (gap + tau)
        models.append(w)
        ds.append(d)
    return models, ds


CASES: dict[str, dict[str, Any]] = {base: {"base": base} for base in BASES} | {
    "adagrad to the letter": {"base": "adagrad", "disparity": "v"},
    "adagrad with momentum and a start": {"base": "adagrad", "beta1": 0.8, "v_init": 0.3},
    "yogi from tau squared": {"base": "yogi", "v_init": "tau**2"},
    "yogi, raw": {"base": "yogi", "guard": False},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_base_is_what_numpy_does(options: dict[str, Any]) -> None:
    case = drawn(len(str(options)), **options)
    models, ds = by_hand(case)
    history = play(settings_of(case))
    np.testing.assert_allclose(history.models, models, rtol=0, atol=1e-10)
    found = [state.d.tolist() for state in history.states(DriftAware)]
    np.testing.assert_allclose(found, ds, rtol=0, atol=1e-12)


def test_the_default_is_adam_bit_for_bit() -> None:
    plain = trajectory(catalog.flash(gamma=None), SmallWorld())
    assert torch.equal(
        trajectory(catalog.flash(gamma=None, base="adam", beta1=0.9), SmallWorld()), plain
    )
    for base in ("yogi", "adagrad"):
        assert not torch.allclose(
            trajectory(catalog.flash(gamma=None, base=base), SmallWorld()), plain
        )


def test_yogi_and_adam_agree_in_the_first_round() -> None:
    first = [trajectory(catalog.flash(gamma=None, base=b), SmallWorld())[0] for b in BASES[:2]]
    torch.testing.assert_close(*first)


def test_adagrad_is_blind_to_the_letter_and_not_by_its_mean() -> None:
    world = SmallWorld(dtype=torch.float64)
    mean, letter = (
        run(catalog.flash(gamma=None, base="adagrad", disparity=d), world).states(DriftAware)
        for d in ("moment", "v")
    )
    assert torch.equal(mean[0].d, torch.zeros_like(mean[0].d))
    for state in letter[1:]:
        torch.testing.assert_close(state.beta3, torch.full_like(state.beta3, 0.5))
        assert bool((state.d <= 0).all())
    assert bool((mean[-1].d > 0).any())


@pytest.mark.parametrize("base", BASES)
def test_held_at_zero_the_base_is_left(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAdam, FedYogi, FedAdagrad with ``v_init: 0``."""
    monkeypatch.setattr(
        DriftAware, "_disparity", lambda self, d, square, before, after: (d + 1.0, d)
    )
    settings = {"eta_g": 0.05, "tau": 1e-3}
    flash = run(catalog.flash(gamma=None, base=base, **settings), SmallWorld(), uniform=True)
    plain = catalog.METHODS[f"fed{base}"](v_init=0.0, **settings)
    other = run(plain, SmallWorld(), uniform=True)
    np.testing.assert_allclose(flash.models, other.models, rtol=1e-6, atol=1e-7)


def test_docstrings_say_what_the_papers_say() -> None:
    stop, history = (" ".join((part.__doc__ or "").split()) for part in (EarlyStop, RememberedRate))
    assert "Algorithm 2" not in stop
    assert "line 7 tests before epoch e" in stop.split("Deviations:")[1]
    assert "Remark 1" in history and "no such option" not in history
