"""Class weights in the loss, and every member's accuracy over time in ``clients.parquet``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from shoal import run
from shoal.core.errors import UserError
from shoal.core.task import cross_entropy_rows
from shoal.metrics.losses import weighted_rows

WORLD = {"name": "static", "members": 10, "rounds": 4}


def played(**more: Any) -> Any:
    return run(world=WORLD, method="fedavg", participation=4, seed=0, engine="loop", **more)


def test_weighted_rows_by_hand() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    weights = torch.tensor([1.0, 2.0, 4.0])
    plain = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(weighted_rows(weights)(logits, labels), plain * weights[labels])
    assert torch.allclose(cross_entropy_rows(logits, labels), plain)


def test_equal_weights_change_nothing_and_unequal_ones_do() -> None:
    plain = played().model
    same = played(loss={"class_weights": [1.0] * 10}).model
    other = played(loss={"class_weights": [5.0] + [1.0] * 9}).model
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    assert not all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_weight_a_class() -> None:
    with pytest.raises(UserError, match="has 3 numbers; 'digits' has 10 classes"):
        played(loss={"class_weights": [1.0, 1.0, 1.0]})


def test_every_member_has_a_row_when_each_is_evaluated(tmp_path: Path) -> None:
    result = played(evaluate={"rows": "members_held_out_both_models", "every": 2})
    table = pq.read_table(result.save(tmp_path / "run") / "clients.parquet").to_pylist()
    by_round = {r: [row for row in table if row["round"] == r] for r in range(4)}
    assert [len(by_round[r]) for r in range(4)] == [4, 10, 4, 10]
    assert all(math.isnan(row["accuracy"]) for row in by_round[0])
    assert sum(row["steps"] > 0 for row in by_round[1]) == 4
    mean = sum(row["accuracy"] for row in by_round[1]) / 10
    assert mean == pytest.approx(result.rounds[1]["personalised"]["mean"])
