"""Law 1 where every member's rows lie in a pool of its own: a stack must not mix them up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.config import from_mapping
from shoal.runs.run import DurableRun

QUADRATIC = {
    "problem": {
        "name": "quadratic",
        "a": [1, 2],
        "b": [2, -1],
        "n": [1, 3],
        "w0": [1],
        "rounds": 2,
    },
    "client_weights": "equal",
    "local": {"epochs": 2, "lr": 0.1},
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_every_engine_trains_members_on_their_own_rows(
    tmp_path: Path, method: str, engine: str
) -> None:
    """Two steps of 0.1 on a (w - b)^2 / 2 from w = 1 for both members, averaged, twice.

    Member 0: 1 -> 1.1 -> 1.19; member 1: 1 -> 0.6 -> 0.28; mean 0.735, and so on.
    """
    config = from_mapping({**QUADRATIC, "method": method, "engine": engine})
    DurableRun.create(tmp_path / "run", config).play()
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    found = [json.loads(line)["theta"] for line in lines]
    assert found[0] == pytest.approx([0.735], abs=1e-12)
    if method == "fedavg":
        assert found[1] == pytest.approx([0.542875], abs=1e-12)
