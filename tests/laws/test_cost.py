"""Vectors down and up a participant, measured by the run, against the methods' table 0.1."""

from __future__ import annotations

import pytest

from shoal import run

SIZE = 400  # coordinates, so that a few scalars round away
TABLE = {
    "fedavg": (1, 1),
    "fedprox": (1, 1),
    "fedsam": (1, 1),
    "fedavgm": (1, 1),
    "fedadam": (1, 1),
    "fedyogi": (1, 1),
    "fedadagrad": (1, 1),
    "flash": (1, 1),
    "scaffold": (2, 2),
    "fedacg": (1, 1),
    "feddyn": (1, 1),
    "fedcm": (2, 1),
    "fednova": (1, 1),
    "feddc": (2, 2),
    "apfl": (1, 1),
    "ditto": (1, 1),
    "fedinit": (1, 1),
    "special": (1, 1),
    "special_c": (1, 1),
    "local_only": (0, 0),
    "adaptive_fedavg": (1, 1),
}


@pytest.mark.parametrize("name", TABLE)
def test_vectors_down_and_up(name: str) -> None:
    problem = {
        "a": [[1.0] * SIZE, [2.0] * SIZE],
        "b": [[2.0] * SIZE, [-1.0] * SIZE],
        "n": [1, 3],
        "w0": [1.0] * SIZE,
        "rounds": 3,
    }
    result = run(problem=problem, method=name, engine="loop", local={"epochs": 2, "lr": 0.01})
    vector = 2 * SIZE * 8  # two participants, float64
    last = result.rounds[-1]
    assert (round(last["bytes_down"] / vector), round(last["bytes_up"] / vector)) == TABLE[name]
