"""One pass over many sets gives what one pass a set gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import shoal
from shoal import models
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask
from shoal.core.types import ClientData, Model, Pool
from shoal.metrics import evaluate as side_by_side
from shoal.metrics.evaluate import evaluate, evaluate_each, evaluate_own, evaluate_sets, united
from shoal.metrics.functions import auc, f1, mae, measured, metric, r2, rmse

TASK = ModuleTask(lambda: models.build("mlp", (4,), 3, hidden=5), classes=3)
POOL = Pool(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)


def some(rows: list[int], shift: int = 0) -> ClientData:
    index = torch.tensor(rows, dtype=torch.int64)
    return ClientData(POOL, index, (POOL.y[index] + shift) % 3, float(len(rows)))


def close(a: Any, b: Any) -> bool:
    return a.accuracy == b.accuracy and math.isclose(a.loss, b.loss, rel_tol=1e-5)


def test_sets_that_overlap_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TASK.initial(0)
    sets = {"a": some(list(range(20))), "b": some(list(range(10, 30))), "c": some([3, 4, 5], 1)}
    plain = {name: evaluate(TASK, model, data) for name, data in sets.items()}
    seen: list[int] = []
    forward = ModuleTask.forward

    def counted(self: ModuleTask, theta: Any, batch: Any, *rest: Any) -> Any:
        seen.append(len(batch.x))
        return forward(self, theta, batch, *rest)

    monkeypatch.setattr(ModuleTask, "forward", counted)
    found = evaluate_sets(TASK, model, sets)
    assert sum(seen) == 33  # rows 0..29 once, and three with another label
    assert all(close(found[name], plain[name]) for name in sets)


def test_members_at_once() -> None:
    data = [some([0, 1, 2]), some([5]), some(list(range(7, 20)), 1)]
    own = [TASK.initial(seed) for seed in range(3)]
    one_by_one = [evaluate(TASK, m, d) for m, d in zip(own, data, strict=True)]
    assert all(close(a, b) for a, b in zip(evaluate_own(TASK, own, data), one_by_one, strict=True))
    shared = [evaluate(TASK, own[0], d) for d in data]
    assert all(close(a, b) for a, b in zip(evaluate_each(TASK, own[0], data), shared, strict=True))
    assert evaluate_each(TASK, own[0], []) == []


def test_a_bank_is_run_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, wide = [TASK.initial(seed) for seed in range(2)], TASK.initial(5)
    data = [some([0, 1, 2]), some([5]), some([7, 8], 1), some(list(range(9, 20))), some([3])]
    models = [bank[0], bank[1], bank[0], wide, bank[1]]
    wanted = [evaluate(TASK, m, d) for m, d in zip(models, data, strict=True)]
    seen: list[int] = []
    forward = ModuleTask.forward

    def counted(self: ModuleTask, theta: Any, batch: Any, *rest: Any) -> Any:
        seen.append(len(batch.x))
        return forward(self, theta, batch, *rest)

    monkeypatch.setattr(ModuleTask, "forward", counted)
    found = evaluate_own(TASK, models, data)
    assert sorted(seen) == [2, 5, 11], "three passes for five members"
    assert all(close(a, b) for a, b in zip(found, wanted, strict=True))


def test_own_models_of_unequal_rows_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "MOST", 3)
    monkeypatch.setattr(side_by_side, "MOST_ROWS", 20)
    sizes = [4, 9, 0, 1, 12, 2, 2, 1]
    assert list(side_by_side._batches(sizes)) == [[3, 7, 5], [6, 0], [1], [4]]
    data = [some(list(range(n))) for n in sizes]
    own = [TASK.initial(seed) for seed in range(len(sizes))]
    found = evaluate_own(TASK, own, data)
    assert found[2].accuracy is None and math.isnan(found[2].loss), "a member without rows"
    for scores, model, rows in zip(found, own, data, strict=True):
        assert not len(rows) or close(scores, evaluate(TASK, model, rows))


def test_sets_of_members_that_stay_are_put_together_once() -> None:
    data = [some([0, 1, 2]), some([5]), some([])]
    first = united(data)
    assert united(data).rows is first.rows
    assert united([*data[:2], some([7])]).rows.tolist() == [0, 1, 2, 5, 7]
    assert united([data[0], some([5], 1)]).labels.tolist() != united(data[:2]).labels.tolist()
    assert evaluate_each(TASK, TASK.initial(0), data)[2].accuracy is None  # it has no rows


def test_models_of_two_sizes_and_running_statistics() -> None:
    class Shifted(ModuleTask):
        """Adds the statistics to the inputs."""

        def forward(self, theta: Any, batch: Any, stats: Any, train: bool) -> Any:
            theta = theta[: self.layout.size]
            return super().forward(theta, batch._replace(x=batch.x + stats), stats, train)

    task = Shifted(lambda: models.build("mlp", (4,), 3, hidden=5), classes=3)
    plain = task.initial(0).theta
    own = [Model(plain + i, torch.full((1,), float(i))) for i in range(3)]
    own += [Model(torch.cat([plain, plain]) - i, torch.full((1,), 0.5)) for i in range(2)]
    data = [some([i, i + 1, i + 7]) for i in range(5)]
    wanted = [evaluate(task, m, d) for m, d in zip(own, data, strict=True)]
    found = evaluate_own(task, own, data)
    assert all(close(a, b) for a, b in zip(found, wanted, strict=True))


def test_networks_with_statistics_are_run_one_by_one() -> None:
    model = TASK.initial(0)
    odd = Model(model.theta, torch.zeros(1))
    task = ModuleTask(lambda: models.build("mlp", (4,), 3, hidden=5), classes=3)
    object.__setattr__(task, "stackable", False)
    found = evaluate_own(task, [model], [some([1, 2])])
    assert close(found[0], evaluate(TASK, model, some([1, 2]))) and odd.stats.numel() == 1


def test_named_metrics_by_hand() -> None:
    two = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -1.0], [0.0, 1.5]])
    labels = torch.tensor([1, 1, 0, 0])
    assert auc(two, labels) == pytest.approx(3 / 4)  # of 4 pairs, (1.0, 1.5) is in the wrong order
    assert f1(two, labels) == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)
    assert math.isnan(auc(two, torch.ones(4, dtype=torch.long)))
    three = torch.eye(3)
    assert auc(three, torch.arange(3)) == 1.0 and f1(three, torch.arange(3)) == 1.0
    guess, truth = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 4.0, 4.0])
    assert mae(guess, truth) == pytest.approx(2 / 3)
    assert rmse(guess, truth) == pytest.approx(math.sqrt(4 / 3))
    assert r2(guess, truth) == pytest.approx(1 - 4 / 6)


def share_of_zeros(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    return float((labels == 0).float().mean())


def test_a_metric_of_the_users() -> None:
    found = measured(
        ["metrics.test_rows:share_of_zeros"], [(torch.zeros(4, 2), torch.tensor([0, 1]))]
    )
    assert found == {"metrics.test_rows:share_of_zeros": 0.5}
    with pytest.raises(UserError, match="did you mean 'auc'"):
        metric("aucc")
    with pytest.raises(UserError, match="is not installed"):
        metric("no_such_module:f")
    with pytest.raises(UserError, match="no function and no class"):
        metric("math:pi")


SMALL: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": 8},
    "world": {"name": "mixed", "members": 8, "rounds": 4, "domains": ["plain", "inverted"],
              "rounds_per_stage": 2},
    "engine": "loop",
}  # fmt: skip


def test_a_run_reports_them() -> None:
    result = shoal.run(
        **SMALL,
        evaluate={"rows": "members_held_out_both_models", "metrics": ["auc", "f1"]},
        method="ditto",
    )
    last, summary = result.rounds[-1], result.summary
    assert last["accuracy"] == pytest.approx(last["personalised"]["mean"])
    assert last["generalised"]["members"] == 8 and 0 <= last["metrics"]["auc"] <= 1
    assert result.rounds[1]["ahead"].keys() == {"task 1"} and "ahead" not in result.rounds[0]
    assert summary["continual"]["acc"] == pytest.approx(sum(last["tasks"].values()) / 2)
    assert summary["continual"]["fwt"] is not None
    assert summary["totals"]["epochs"] == sum(r["epochs"] for r in result.rounds) == 32
    assert summary["peak_memory_mb"] > 50 and summary["cost"]["up"] == pytest.approx(1.0)
    assert 0 < summary["evaluation_share"] < 1


def test_an_unknown_metric_is_refused_before_the_run() -> None:
    with pytest.raises(UserError, match="evaluate.metrics"):
        shoal.run(**SMALL, evaluate={"metrics": ["f2"]})
