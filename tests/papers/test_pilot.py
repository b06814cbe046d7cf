"""Probes begin at the pilot's last model, or (Table 14's ablation) at the random one."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.build import build
from shoal.config.schema import from_mapping
from shoal.runs.player import Player

A, B = (1.0, 2.0, 0.5, 4.0), (3.0, 1.0, -2.0, 0.5)  # curvature and minimum of each session
RATE = 0.1


def distances(pilot: str) -> list[float]:
    """From the probe of the last of four sessions to those of the two before it."""
    segments: list[dict[str, Any]] = [
        {"rounds": 2, "a": [a], "b": [b], "n": [1], "members": [i]}
        for i, (a, b) in enumerate(zip(A, B, strict=True))
    ]
    start = {"dynamic_init": {"similarity": "l2", "pilot": pilot, "probe_rate": 1.0}}
    config = {
        "problem": {"name": "quadratic", "segments": segments, "w0": [1.0]},
        "method": ["fedavg", start],
        "local": {"epochs": 1, "lr": RATE},
        "engine": "loop",
    }
    player = Player(build(from_mapping(config)))
    record: dict[str, Any] = {}
    while not player.done:
        record, _ = player.play()
    found: list[float] = record["session_distances"]
    return found


def by_hand(w: float) -> list[float]:
    """One step from ``w`` in each session: G = -rate a (w - b)."""
    g = [-RATE * a * (w - b) for a, b in zip(A, B, strict=True)]
    return [abs(g[3] - g[1]), abs(g[3] - g[2])]


@pytest.mark.parametrize("pilot", ["trained", "random"])
def test_where_probes_begin(pilot: str) -> None:
    w = 1.0
    if pilot == "trained":
        for _ in range(2):  # the pilot session
            w -= RATE * A[0] * (w - B[0])
    assert distances(pilot) == pytest.approx(by_hand(w), rel=1e-5)
