"""Evaluation on the workers: the figures of one machine, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import SmallWorld, settings_for, small_task

from shoal import catalog
from shoal.core.types import ClientData, Pool
from shoal.metrics.evaluate import evaluate, evaluate_each, evaluate_sets
from shoal.rounds.evaluate import elsewhere
from shoal.runs.cluster import ray as engine_ray
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
WORLD = SmallWorld(clients=8, features=(7,))
ROWS = 9_000


@pytest.fixture(scope="module")
def two(started: Make) -> Iterator[Any]:
    yield started(1, 1)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ray, "SPREAD", 1)


def pool() -> Pool:
    torch.manual_seed(3)
    return Pool(torch.randn(ROWS, 7), torch.randint(0, WORLD.classes, (ROWS,)))


def part(own: Pool, rows: torch.Tensor, weight: torch.Tensor | None = None) -> ClientData:
    return ClientData(own, rows, own.y[rows], float(len(rows)), weight)


def test_figures_are_those_of_one_machine(two: Any, engine: Make) -> None:
    made: Ray = engine(workers=2)
    settings = settings_for(catalog.fedavg(), WORLD, small_task(world=WORLD))
    far, model, own = elsewhere(made, settings), settings.task.initial(1), pool()
    asked: list[int] = []
    passes = made.passes

    def watched(*words: Any) -> Any:
        found = passes(*words)
        asked.append(-1 if found is None else len(found))
        return found

    made.passes = watched  # type: ignore[method-assign]
    far = elsewhere(made, settings)
    rows, weight = torch.randperm(ROWS), torch.rand(ROWS)
    apart = torch.cat([torch.arange(1024), torch.arange(5001, 8001)])
    for data in (part(own, torch.arange(ROWS)), part(own, rows), part(own, rows, weight),
                 part(own, apart), part(own, torch.arange(3, 5003))):  # fmt: skip
        assert evaluate(settings.task, model, data, far) == evaluate(settings.task, model, data)
    sets = {"a": part(own, rows[:5000]), "b": part(own, rows[2000:])}
    found = evaluate_sets(settings.task, model, sets, far)
    assert found == evaluate_sets(settings.task, model, sets)
    each = [part(own, rows[i : i + 300]) for i in range(0, ROWS, 300)]
    assert evaluate_each(settings.task, model, each, far) == evaluate_each(
        settings.task, model, each
    )
    assert len(asked) == 7 and all(count > 3 for count in asked)


def test_what_is_quick_stays_here(two: Any, engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ray, "SPREAD", 10**9)
    settings = settings_for(catalog.fedavg(), WORLD, small_task(world=WORLD))
    far, model, own = elsewhere(engine(workers=2), settings), settings.task.initial(1), pool()
    assert far is not None
    assert far(model, part(own, torch.arange(ROWS)), [slice(0, 4500), slice(4500, 9000)]) is None
