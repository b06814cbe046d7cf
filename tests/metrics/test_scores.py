"""Metrics of labels, numbers, pixels and tokens by hand, and what a run is judged by."""

from __future__ import annotations

import json
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from shoal.cli import call
from shoal.core.task import Learnt
from shoal.metrics.figures import figures, headline, score_of
from shoal.metrics.functions import DEFAULTS, SCORES, auc, f1, measured, r2, rmse
from shoal.metrics.losses import hits

LOW = -20.0


def sure(classes: Tensor, of: int) -> Tensor:
    """Logits that leave no doubt."""
    return torch.nn.functional.one_hot(classes, of) * 40.0 + LOW


def test_several_labels_by_hand() -> None:
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    outputs = torch.tensor([[2.0, LOW], [LOW, LOW], [1.0, LOW], [LOW, 3.0]])
    # label 0: 1 right of 2 said and of 2 there; label 1: 1 of 1
    assert f1(outputs, labels) == pytest.approx((0.5 + 1.0) / 2)
    # label 0: pairs (1, 0) in order: 2 > 1, 2 > LOW, LOW < 1, LOW = LOW; label 1: all 3
    assert auc(outputs, labels) == pytest.approx(((1 + 1 + 0 + 0.5) / 4 + 1.0) / 2)
    found = hits(Learnt("multi_label"), outputs, labels)
    assert found is not None and found.tolist() == [1.0, 0.5, 0.5, 1.0]


def test_numbers_by_hand() -> None:
    labels = torch.tensor([[0.0, 1.0], [2.0, 1.5], [4.0, 2.0]])
    outputs = torch.tensor([[0.0, 1.0], [3.0, 1.5], [4.0, 1.0]])
    # column 0: 1 - 1 / 8; column 1: 1 - 1 / 0.5
    assert r2(outputs, labels) == pytest.approx((7 / 8 - 1) / 2)
    assert r2(outputs, torch.ones(3, 2)) == 0 and r2(labels, labels) == 1
    assert rmse(outputs, labels) == pytest.approx(sqrt(2 / 6))
    column = outputs[:, :1], labels[:, 0]  # a network gives a column for one number per row
    assert r2(*column) == pytest.approx(7 / 8)
    assert hits(Learnt("number"), *column) is None
    shares = hits(Learnt("number", None, (8 / 3,)), *column)
    assert shares is not None and shares.mean().item() == pytest.approx(7 / 8)


@pytest.mark.parametrize("parts", [1, 3])
def test_pixels_by_hand_in_any_number_of_parts(parts: int) -> None:
    labels = torch.tensor([[[0, 0], [1, 9]], [[1, 1], [2, 9]], [[0, 9], [9, 9]]])
    said = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [1, 2]], [[0, 0], [0, 0]]])
    logits = sure(said, 3).movedim(-1, 1)
    pairs = list(zip(logits.tensor_split(parts), labels.tensor_split(parts), strict=True))
    found = measured(["iou", "perplexity"], pairs, ignored=9)
    # without label 9: class 0: 2 of 3; class 1: 3 of 5 (one said for 0, one for 2); class 2: 0 of 1
    assert found["iou"] == pytest.approx((2 / 3 + 3 / 5 + 0) / 3)
    right = hits(Learnt("dense", 9), logits, labels)
    assert right is not None and right.tolist() == pytest.approx([2 / 3, 2 / 3, 1.0])


def test_tokens_by_hand() -> None:
    labels = torch.tensor([[0, 1, -100], [1, -100, -100]])
    shares = torch.tensor([[[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], [[0.25, 0.75]] * 3])
    found = measured(["perplexity"], [(shares.log(), labels)], ignored=-100)["perplexity"]
    assert found == pytest.approx(exp(-(log(0.5) + log(0.8) + log(0.75)) / 3))


def judged_by(tmp_path: Path, kind: str, y: Any, **more: Any) -> dict[str, Any]:
    x = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=y(x))
    data = {"path": str(tmp_path / "rows.npz"), "target": kind}
    world = {"name": "static", "members": 3, "rounds": 3, "partition": "iid"}
    result = shoal.run(data=data, model="linear", world=world, engine="loop", **more)
    return {"records": result.records, "summary": result.summary, "result": result}


def test_numbers_are_judged_by_r2(tmp_path: Path) -> None:
    found = judged_by(tmp_path, "number", lambda x: x[:, 0] - x[:, 1])
    records, summary = found["records"], found["summary"]
    assert summary["score"] == "r2" and summary["final_accuracy"] is None
    values = [record["metrics"]["r2"] for record in records]
    assert [score_of(record) for record in records] == values
    assert summary["final_r2"] == values[-1] == headline(summary, "final")
    assert summary["best_r2"] == max(values)
    errors = [record["metrics"]["rmse"] for record in records]
    assert errors[0] > errors[-1]  # it learns, so the best is the lowest
    assert summary["best_metrics"]["rmse"] == min(errors)
    page = found["result"].page
    assert page["series"]["r2"]["mean"][-1] == pytest.approx(values[-1], abs=1e-4)
    assert any("of r2" in v["text"] or "r2 of" in v["text"] for v in page["verdicts"])


def test_a_choice_of_metrics_keeps_what_a_run_is_judged_by(tmp_path: Path) -> None:
    found = judged_by(tmp_path, "number", lambda x: x[:, 0], evaluate={"metrics": ["rmse"]})
    assert list(found["records"][0]["metrics"]) == ["r2", "rmse"]
    several = judged_by(tmp_path, "multi_label", lambda x: (x[:, :2] > 0) * 1.0)
    assert several["summary"]["score"] == "f1"
    plain = judged_by(tmp_path, "multi_label", lambda x: (x[:, :2] > 0) * 1.0,
                      evaluate={"metrics": ["auc"]})  # fmt: skip
    assert "score" not in plain["summary"] and plain["summary"]["final_accuracy"] is not None


def test_members_own_rows_have_scores_of_their_own(tmp_path: Path) -> None:
    rules = {"rows": "members_held_out"}
    found = judged_by(tmp_path, "number", lambda x: x[:, 0], evaluate=rules)["records"][-1]
    assert found["metrics"]["r2"] == found["personalised"]["mean"] and found["accuracy"] is None
    labels = judged_by(tmp_path, "multi_label", lambda x: (x[:, :2] > 0) * 1.0, evaluate=rules)
    last = labels["records"][-1]
    assert "score" not in last and last["accuracy"] == last["personalised"]["mean"]
    expected = {"multi_label": "f1", "number": "r2", "dense": "iou"}
    assert expected == SCORES and all(SCORES[t] in DEFAULTS[t] for t in SCORES)


def test_a_fall_is_a_fall_of_the_score() -> None:
    shift = {"kinds": ["members"], "announced": True}
    curve = [0.5, 0.9, 0.9, 0.2, 0.9, 0.9]
    records = [
        {"round": i, "accuracy": None, "loss": 1.0, "seconds": 1.0, "tasks": {}, "rejected": [],
         "short": False, "score": "r2", "metrics": {"r2": value},
         "shift": shift if i == 3 else None}
        for i, value in enumerate(curve)
    ]  # fmt: skip
    found = figures(records)
    assert found["lowest"] == 0.2 and found["unrecovered"] == 0


def test_runs_compare_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, loss in (("a", "mse"), ("b", "mae")):
        x = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
        np.savez(tmp_path / "rows.npz", x=x, y=x[:, 0])
        (tmp_path / "c.yaml").write_text(json.dumps({
            "data": {"path": str(tmp_path / "rows.npz"), "target": "number"}, "model": "linear",
            "world": {"name": "static", "members": 3, "rounds": 3, "partition": "iid"},
            "loss": loss}))  # fmt: skip
        assert call(["run", str(tmp_path / "c.yaml"), "-o", str(tmp_path / name)]) == 0
        assert ", r2 " in capsys.readouterr().out
    out = str(tmp_path / "compare.png")
    assert call(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "-o", out]) == 0
    said = capsys.readouterr().out
    assert "highest mean r2" in said and "rmse" in said and "↓" in said
