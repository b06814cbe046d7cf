"""Accuracy and loss, counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from shoal.core.task import ModuleTask, QuadraticTask
from shoal.core.types import ClientData, Model, Pool
from shoal.metrics.evaluate import Scores, evaluate, mean_scores


def linear_task() -> tuple[ModuleTask, Model]:
    """Two inputs are the two logits."""
    task = ModuleTask(lambda: nn.Linear(2, 2), classes=2)
    return task, Model(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]), torch.zeros(0))


def rows(x: list[list[float]], y: list[int], weight: list[float] | None = None) -> ClientData:
    pool = Pool(torch.tensor(x), torch.tensor(y))
    given = None if weight is None else torch.tensor(weight)
    return ClientData(pool, torch.arange(len(y)), pool.y, float(len(y)), given)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_by_hand(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.metrics.evaluate.ROWS", batch)
    task, model = linear_task()
    data = rows([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 1, 1])
    found = evaluate(task, model, data)
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.loss == pytest.approx((2 * right + wrong) / 3)


def test_weights_and_drifted_labels() -> None:
    task, model = linear_task()
    data = rows([[1.0, 0.0], [0.0, 1.0]], [0, 1], [3.0, 1.0])
    swapped = ClientData(data.pool, data.rows, torch.tensor([0, 0]), 2.0, data.weight)
    assert evaluate(task, model, swapped).accuracy == pytest.approx(0.75)


def test_quadratics_have_a_loss_only() -> None:
    task = QuadraticTask((1.0,))
    pool = Pool(torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[2.0], [-1.0]]).double())
    data = ClientData(pool, torch.arange(2), pool.y, 2.0, torch.tensor([1.0, 3.0]))
    # 0.5 * 1 * 1 = 0.5 and 0.5 * 2 * 4 = 4, weighted 1 to 3
    assert evaluate(task, task.initial(0), data) == Scores(None, pytest.approx(12.5 / 4))


def test_nothing_to_evaluate() -> None:
    task, model = linear_task()
    empty = ClientData(Pool(torch.zeros(1, 2), torch.zeros(1)), torch.arange(0), torch.zeros(0), 0)
    assert evaluate(task, model, empty).accuracy is None
    assert math.isnan(mean_scores([]).loss)
