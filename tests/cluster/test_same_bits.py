"""The bits of one machine, with any number of workers on any number of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import nn

from shoal import catalog, run
from shoal.core.task import ModuleTask
from shoal.core.types import Pool
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds.state import Settings
from shoal.runs.cluster import crew
from shoal.runs.cluster.connect import Cluster
from shoal.runs.cluster.ray import Ray

pytestmark = pytest.mark.slow

METHODS = {
    "fedavg": catalog.fedavg(),
    "scaffold": catalog.scaffold(),
    "sr_fdil": catalog.METHODS["sr_fdil"](),
    "dynamic_init + fedagg": catalog.dynamic_init() | catalog.fedagg(epochs=2),
    "krum": catalog.METHODS["krum"](),
}
KINDS: dict[str, Any] = {
    "unequal": SmallWorld(clients=41, shifts={1: "members", 2: "domain"}),
    "equal": SmallWorld(clients=41, rows=(12,)),
    "images": SmallWorld(clients=9, rows=(9, 4), features=(1, 8, 8)),
}


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def workers(request: pytest.FixtureRequest, started: Callable[..., Any]) -> Iterator[Ray]:
    import ray

    if not ray.is_initialized():
        started(2, 2, 2)
    made = Ray(Cluster(workers=request.param))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "LATER", 60.0)  # a busy machine starts five slowly
        assert len(made.crew.ready) == request.param and not list(made.notes)
    yield made
    made.close()


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def settings_of(method: Method, world: SmallWorld, **more: Any) -> Settings:
    task = small_task(world=world)
    if len(world.features) > 1:
        task = ModuleTask(convolution, classes=world.classes, shape=world.features)
    return settings_for(method, world, task, participation=1.0, batch=4, **more)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("name", list(METHODS))
def test_equals_one_machine(
    name: str, kind: str, workers: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MILLISECOND", 3000)  # as many chunks as larger networks have
    settings = settings_of(METHODS[name], KINDS[kind])
    one: Engine = Loop() if METHODS[name].loop_only_reason else Stacked()
    _, reports, here = play(settings, one, 3)
    _, theirs, there = play(settings, workers, 3)
    for a, b in zip(reports, theirs, strict=True):
        assert (a.cohort, a.accepted, a.steps, a.epochs, a.bytes_up, a.norms) == (
            *(b.cohort, b.accepted, b.steps, b.epochs, b.bytes_up),
            pytest.approx(b.norms, nan_ok=True, abs=0),
        )
    assert all(map(torch.equal, here, there))


def test_whole_data_sets_as_batches(workers: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share knows the longest client of all, whoever its own are."""
    monkeypatch.setattr(plan, "MILLISECOND", 3000)
    settings = settings_of(catalog.fedavg(), KINDS["unequal"])
    settings = settings.__class__(**{**vars(settings), "batch": None})
    (_, _, here), (_, _, there) = (play(settings, e, 2) for e in (Stacked(), workers))
    assert all(map(torch.equal, here, there))


class OwnPools(SmallWorld):
    """Every client's rows are a pool of its own."""

    def train(self, client: int, round: int) -> Any:
        data = super().train(client, round)
        made = self.__dict__.setdefault("own", {})
        key = (client, self.at(round).stage)
        if key not in made:
            made[key] = Pool(data.pool.x[data.rows], data.labels)
        return data.__class__(made[key], torch.arange(len(data)), data.labels, data.count)


def test_clients_with_pools_of_their_own(workers: Ray) -> None:
    settings = settings_of(catalog.scaffold(), OwnPools(clients=23, shifts={1: "domain"}))
    (_, _, here), (_, _, there) = (play(settings, e, 2) for e in (Stacked(), workers))
    assert all(map(torch.equal, here, there))


def test_from_a_config(workers: Ray) -> None:
    problem = {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2}
    local = {"epochs": 2, "lr": 0.1}
    result = run(problem=problem, client_weights="equal", local=local, engine="ray", workers=1)
    assert [record["theta"][0] for record in result.rounds] == pytest.approx([0.735, 0.542875])
    assert result.plan.config.complete()["ray"] == {"workers": 1}
