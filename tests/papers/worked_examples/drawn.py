"""Drawn cases for the verifier, and the settings of the base methods in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from papers.worked_examples.by_numpy import Data

from shoal.papers.worked_examples.run import verify_case

Case = dict[str, Any]
BASES: dict[str, dict[str, Any]] = {
    "FedAvg": {"eta_g": 0.8},
    "FedAvgM": {"beta": 0.7, "eta_g": 0.8},
    "FedACG": {"lambda": 0.3, "beta": 0.2},
    "FedAdam": {"beta1": 0.8, "beta2": 0.9, "tau": 0.01, "eta_g": 0.05},
    "FLASH": {"beta1": 0.9, "beta2": 0.6, "tau": 1e-3, "eta_g": 0.05, "gamma": None},
    "FedProx": {"mu": 0.3},
    "FedInit": {"beta": 0.1},
    "FedCM": {"alpha": 0.4},
    "FedDyn": {"alpha": 0.5},
    "FedNova": {},
    "FedDC": {"alpha": 0.4},
    "SCAFFOLD": {"option": 2},
}


def checked(case: Case, models: Any = None, **extra: Any) -> None:
    """Plays the case by the library and compares."""
    if models is not None:
        case = case | {"expected_global": [np.asarray(w).tolist() for w in models]}
    result = verify_case(case | {"expected_extra": extra}, 1e-9)
    assert result.status == "ok", result.problems


def weights_of(hyper: dict[str, Any], n: Any) -> Any:
    return n if hyper["aggregation"] == "samples" else [1.0] * len(n)


def batches(seed: int, method: str, **hyper: Any) -> Case:
    """Four clients with mini-batches of their own, not all of whom take part."""
    draw = np.random.default_rng(seed)
    own = [
        [
            {"a": draw.uniform(0.3, 2.0, 3).tolist(), "b": draw.normal(0, 1, 3).tolist()}
            for _ in range(count)
        ]
        for count in (2, 4, 1, 3)
    ]
    return {
        "id": "drawn", "kind": "batches", "method": method,
        "problem": {"batches": own, "n": [2.0, 5.0, 1.0, 3.0]}, "w0": draw.normal(0, 1, 3).tolist(),
        "hyperparameters": {"rounds": 3, "aggregation": ["samples", "uniform"][seed % 2]} | hyper,
        "participation": [[0, 1, 3], [2, 3], [0, 1, 2, 3]],
    }  # fmt: skip


def data_of(case: Case) -> list[Data]:
    clients = case["problem"]["batches"]
    return [[(np.array(b["a"]), np.array(b["b"])) for b in own] for own in clients]
