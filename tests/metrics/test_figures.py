"""Metrics on curves and matrices whose values were worked out by hand."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.methods.parts.detectors import divergence, upload_spread
from shoal.metrics.cost import TABLE_8, MethodCost, beside_table_8, cost
from shoal.metrics.figures import (
    Reached,
    SessionTransition,
    Spread,
    figures,
    spread,
    to_best,
    to_target,
    transitions,
)
from shoal.metrics.shifts import (
    Detection,
    Recovery,
    average_accuracy,
    backward_transfer,
    continual,
    detection,
    forward_transfer,
    task_matrix,
    worst_drop,
)

PRINTED = Path(os.environ.get("SHOAL_PAPERS", Path(__file__).parents[3] / "shared" / "paper"))


def test_spread_over_members() -> None:
    """20 members: the worst decile is the mean of the two lowest."""
    values = [0.1, 0.3] + [0.8] * 18
    found = spread(values)
    mean = (0.4 + 14.4) / 20
    assert found == Spread(
        pytest.approx(mean),
        pytest.approx(((0.64**2 + 0.44**2 + 18 * 0.06**2) / 20) ** 0.5),
        pytest.approx(0.2),
        20,
    )
    assert spread([]) is None
    assert spread([0.5]) == Spread(0.5, 0.0, 0.5, 1)


def test_the_rounds_after_a_transition() -> None:
    curve = [0.8, 0.9, 0.1, 0.3, None, 0.5, 0.2, 0.4]
    assert transitions(curve, [0, 2, 6], k=3) == [
        SessionTransition(2, pytest.approx(0.2), pytest.approx((0.9 + 0.1 + 0.3) / 3)),
        SessionTransition(6, pytest.approx(0.3), pytest.approx((0.5 + 0.2 + 0.4) / 3)),
    ]
    assert transitions(curve, []) == [] and transitions([None, None], [1])[0].after is None


MATRIX = [[0.9, None, None], [0.6, 0.8, None], [0.5, 0.85, 0.7]]


def test_continual_figures() -> None:
    assert average_accuracy(MATRIX[-1]) == pytest.approx((0.5 + 0.85 + 0.7) / 3)
    assert backward_transfer(MATRIX) == pytest.approx(((0.5 - 0.9) + (0.85 - 0.8)) / 2)
    assert worst_drop(MATRIX) == pytest.approx(0.4)
    assert worst_drop([[0.5, None], [0.6, 0.7]]) == pytest.approx(-0.1)
    assert forward_transfer([(0.3, 0.1), (0.05, 0.1)]) == pytest.approx(0.075)
    assert backward_transfer([[0.9]]) is None and forward_transfer([]) is None
    assert average_accuracy([0.5, None]) is None


def test_the_matrix_comes_from_records() -> None:
    """The last evaluated round of a stage counts; the task ahead gives forward transfer."""
    records: list[dict[str, Any]] = [
        {"task": 0, "tasks": {"task 0": 0.2}},
        {"task": 0, "tasks": {"task 0": 0.9},
         "ahead": {"task 1": {"accuracy": 0.3, "untrained": 0.1}}},
        {"task": 1, "tasks": {}},
        {"task": 1, "tasks": {"task 0": 0.6, "task 1": 0.8}},
    ]  # fmt: skip
    assert task_matrix(records) == [[0.9, None], [0.6, 0.8]]
    found = continual(records)
    assert found is not None
    assert found["bwt"] == pytest.approx(-0.3) and found["fwt"] == pytest.approx(0.2)
    assert found["acc"] == pytest.approx(0.7) and found["worst_drop"] == pytest.approx(0.3)
    assert continual(records[:2]) is None


# rows whose printed ACC, the same in both tables, is not the mean of the tasks printed beside it
NOT_THE_MEAN = {
    ("Digit-10", "FedAvg"),
    ("Digit-10", "SR-FDIL"),
    ("Digit-10", "FLwF-2T"),
    ("VLCS", "SR-FDIL"),
    ("DN4IL", "SPECIAL-C"),
}


def test_acc_is_that_of_the_printed_rows() -> None:
    """SPECIAL's Tables 9 to 12 print every task; ACC is their mean, where Table 1 agrees with the
    ACC that stands beside them (the authors' own tables disagree in some rows)."""
    path = PRINTED / "special.csv"
    if not path.exists():
        pytest.skip(f"the printed tables are not here; set SHOAL_PAPERS ({path} is missing)")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    main = {
        (r["dataset"], r["method"]): float(r["value"])
        for r in rows
        if r["table"] == "Table 1" and r["metric"] == "ACC" and r["value"]
    }
    tasks: dict[tuple[str, str], list[float]] = defaultdict(list)
    beside: dict[tuple[str, str], float] = {}
    for r in rows:
        if r["table"] not in ("Table 9", "Table 10", "Table 11", "Table 12") or not r["value"]:
            continue
        key = (r["dataset"], r["method"])
        if r["metric"] == "ACC":
            beside[key] = float(r["value"])
        elif r["metric"].startswith("final_task_accuracy:"):
            tasks[key].append(float(r["value"]))
    agree = [k for k in tasks if k in main and abs(100 * beside.get(k, 9.0) - main[k]) < 0.006]
    found = {k: average_accuracy(tasks[k]) or 0.0 for k in agree}
    off = {k: (v, beside[k]) for k, v in found.items() if abs(v - beside[k]) > 2e-4}
    print(f"{len(tasks)} rows, {len(agree)} agree with Table 1, {len(off)} are no mean: {off}")
    assert len(agree) >= 20
    assert set(off) == NOT_THE_MEAN, off


def test_spreads_are_mean_squared_distances() -> None:
    local = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 0.5]], dtype=torch.float64)
    received = torch.tensor([0.3, 0.7], dtype=torch.float64)
    ways = local - received
    for weights in ([1 / 3] * 3, [0.5, 0.2, 0.3]):
        w = torch.tensor(weights, dtype=torch.float64)[:, None]
        mean = (w * local).sum(0)
        direct = float((w[:, 0] * (local - mean).square().sum(1)).sum())
        norms, long = ways.norm(dim=1).tolist(), float((w * ways).sum(0).norm())
        assert upload_spread(norms, long, weights) == pytest.approx(direct, rel=1e-12)
    assert upload_spread([1.0], 1.0 + 1e-9, [1.0]) == 0.0
    new = torch.tensor([-1.0, 0.2], dtype=torch.float64)
    direct = float((local - new).square().sum()) / 3
    found = divergence(float(ways.square().sum()), ways.sum(0), 3, new - received)
    assert found == pytest.approx(direct, rel=1e-12)
    assert divergence(1.0 - 1e-9, torch.tensor([1.0]), 1, torch.tensor([1.0])) == 0.0


def test_rounds_and_seconds_to_a_target() -> None:
    curve, seconds = [0.2, None, 0.6, 0.9, 0.9], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert to_target(curve, seconds, 0.6) == Reached(3, 6.0)
    assert to_target(curve, seconds, 0.95) == Reached(None, None)
    assert to_best(curve, seconds) == Reached(4, 10.0)
    assert to_best([None], [1.0]) == Reached(None, None)


def test_precision_recall_and_delay() -> None:
    assert detection([10, 20, 30], [3, 12, 13, 30], 40) == Detection(
        3, 4, 2, 0.5, pytest.approx(2 / 3), 1.0
    )
    assert detection([10], [18], 40, window=5) == Detection(1, 1, 0, 0.0, 0.0, None)
    assert detection([10], [], 40) == Detection(1, 0, 0, None, 0.0, None)
    assert detection([0], [4], 40) == Detection(0, 1, 0, 0.0, None, None)


def test_cost_counts_vectors() -> None:
    scaffold = cost(40, 10, 800, 800, clients=5, client_bytes=200, server_bytes=40, gradients=1)
    assert scaffold == MethodCost(2.0, 2.0, 1.0, 1.0, 1)
    assert (scaffold.communication_ratio, scaffold.storage_ratio) == (2.0, 3.0)
    text = beside_table_8(
        {"scaffold": scaffold, "fedinit": MethodCost(1, 1, 1, 0), "mine": scaffold}
    )
    assert "3x / 3x" in text and "2x / 1x" in text and "3x / -" in text
    assert "fedinit: a client keeps its last model" in text and "fedcm" not in text
    assert "no rule" in TABLE_8["fedcm"].note


def record(round: int, accuracy: float, **more: Any) -> dict[str, Any]:
    return {"round": round, "accuracy": accuracy, "loss": 1.0, "shift": None, "noticed": False,
            "task": 0, "tasks": {}, "steps": 2, "samples": 4, "epochs": 3, "bytes_up": 8,
            "bytes_down": 8, "rejected": [], "short": False, "seconds": 2.0,
            "seconds_evaluating": 0.5, "cohort": [1, 2], "attempts": 1} | more  # fmt: skip


def test_figures_of_a_run() -> None:
    drift = {"kinds": ["concept"], "announced": False}
    records = [record(0, 0.5), record(1, 0.9), record(2, 0.3, shift=drift),
               record(3, 0.9, noticed=True, personalised={"mean": 0.9})]  # fmt: skip
    found = figures(records, Recovery(target=0.8), window=2)
    assert found["detection"]["delay"] == 1.0 and found["detection"]["precision"] == 1.0
    assert found["shifts"][0]["first_rounds"] == pytest.approx(0.6)
    assert found["mean_first_rounds"] == pytest.approx(0.6)
    assert found["to_target"] == {"target": 0.8, "rounds": 2, "seconds": 4.0}
    assert found["to_best"] == {"rounds": 2, "seconds": 4.0}
    assert found["totals"]["epochs"] == 12 and found["evaluation_share"] == 0.25
    assert found["personalised"] == {"mean": 0.9} and "continual" not in found
    quiet = [record(0, 0.5), record(1, 0.5, shift=drift)]
    assert "detection" not in figures(quiet)
    assert figures(quiet, detecting=True)["detection"]["recall"] == 0.0
