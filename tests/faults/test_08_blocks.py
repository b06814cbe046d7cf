"""FedDrift: which blocks of data are the same is the world's to say, never the values'."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.config.build import build
from shoal.config.schema import from_mapping
from shoal.core.world_protocol import gathered
from shoal.papers.worked_examples.run import verify_case
from shoal.worlds.quadratic import Quadratics, Segment


def segment(b: float, n: float, rounds: int = 2) -> Segment:
    return Segment(rounds, (0,), ((1.0,),), ((b,),), (n,))


def test_equal_values_that_came_twice_count_twice() -> None:
    world = Quadratics((segment(1.0, 2.0), segment(1.0, 2.0), segment(3.0, 1.0)), "concept")
    both = gathered(world, 0, (1, 3, 5))
    assert both.count == 5.0 and both.labels.flatten().tolist() == [1.0, 1.0, 3.0]
    assert gathered(world, 0, (0, 1)).count == 2.0  # no new data within a segment


SMALL = {
    "data": "digits",
    "model": "linear",
    "method": "feddrift_eager",
    "local": {"epochs": 1, "batch": 16, "lr": 0.1},
}


def test_a_world_without_new_data_has_one_block_per_client() -> None:
    still = {"name": "static", "members": 4, "rounds": 6, "partition": "iid"}
    world = build(from_mapping({**SMALL, "world": still})).world
    assert gathered(world, 0, (0, 2, 5)).count == world.train(0, 0).count
    assert len({world.block(0, r) for r in range(6)}) == 1


# ---- drawn cases against a plain version ---------------------------------------------------------
def plain(steps: list[dict[str, list[float]]], hyper: dict[str, float]) -> list[list[list[float]]]:
    """FedDrift-Eager on scalar unit quadratics, everybody in every round; models per step."""
    clients = len(steps[0]["n"])
    models, history = [0.0], [[] for _ in range(clients)]
    reference = [np.inf] * clients
    out = []
    for data in steps:
        b, n = data["b"], data["n"]
        losses = [[0.5 * (w - b[c]) ** 2 for w in models] for c in range(clients)]
        best = [int(np.argmin(row)) for row in losses]
        drifted = [min(row) > reference[c] + hyper["delta"] for c, row in enumerate(losses)]
        reference = [min(row) for row in losses]
        if any(drifted):
            models.append(models[best[drifted.index(True)]])
            best = [len(models) - 1 if d else k for k, d in zip(best, drifted, strict=True)]
        for c in range(clients):
            history[c].append((best[c], b[c], n[c]))
        for _ in range(hyper["rounds_per_step"]):
            new = list(models)
            for k in set(best):
                ends, weights = [], []
                for c in range(clients):
                    mine = [(v, m) for model, v, m in history[c] if model == k]
                    if mine:
                        amount = sum(m for _, m in mine)
                        target, x = sum(v * m for v, m in mine) / amount, models[k]
                        for _ in range(hyper["K"]):
                            x -= hyper["eta"] * (x - target)
                        ends.append(x)
                        weights.append(amount)
                new[k] = float(np.average(ends, weights=weights))
            models = new
        out.append([[w] for w in models])
    return out


@pytest.mark.parametrize("seed", range(8))
def test_drawn_steps_with_repeated_values(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values, steps = [-1.0, 0.5, 1.5], []
    for _ in range(4):
        b = [float(draw.choice(values)) for _ in range(3)]
        steps.append({"b": b, "n": [float(draw.integers(1, 4)) for _ in range(3)]})
    hyper = {"K": 2, "eta": 0.1, "rounds_per_step": 2, "delta": 0.3}
    case = {
        "id": "drawn", "kind": "steps", "method": "FedDrift-Eager", "w0": [0.0],
        "problem": {"steps": [{"a": [[1.0]] * 3, "b": [[v] for v in s["b"]], "n": s["n"]}
                              for s in steps]},
        "hyperparameters": {**hyper, "score": "loss", "new_model": "copy", "cap": 9,
                            "aggregation": "samples"},
        "expected_extra": {"per_step": [{"models": m} for m in plain(steps, hyper)]},
    }  # fmt: skip
    result = verify_case(case, 1e-9)
    assert result.status == "ok", result.problems
