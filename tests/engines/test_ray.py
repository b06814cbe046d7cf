"""The ray engine: law 1, deaths of actors, data that is sent once. One cluster for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mortal import EagerMortal
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog, run
from shoal.core.errors import UserError
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.engines.workers import shares
from shoal.methods.method import Method
from shoal.rounds.state import Settings

pytestmark = pytest.mark.slow  # a cluster takes seconds to start, and is not part of `make setup`
ray = pytest.importorskip("ray", reason="engine ray is an extra: pip install 'shoal[ray]'")

from shoal.engines.workers import ray as ray_engine  # noqa: E402
from shoal.engines.workers.ray import Held, PoolShards, Ray, array  # noqa: E402

METHODS = {
    "scaffold": catalog.scaffold(),
    "sr_fdil": catalog.METHODS["sr_fdil"](),
    "dynamic_init + fedagg": catalog.dynamic_init() | catalog.fedagg(epochs=2),
}


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WORTH", 1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Ray]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    made = Ray(2)  # joins what runs already
    yield made
    made.close()
    assert ray.is_initialized()
    ray.shutdown()


def settings_of(method: Method) -> Settings:
    world = SmallWorld(shifts={1: "members", 2: "domain"})
    return settings_for(method, world, small_task(world=world), participation=1.0, batch=4)


@pytest.mark.parametrize("name", list(METHODS))
def test_equals_stacked(name: str, engine: Ray) -> None:
    settings = settings_of(METHODS[name])
    other: Engine = Loop() if METHODS[name].loop_only_reason else Stacked()
    _, reports, here = play(settings, other, 3)
    _, ray_reports, there = play(settings, engine, 3)
    for a, b in zip(reports, ray_reports, strict=True):
        assert (a.cohort, a.accepted, a.steps, a.epochs) == (
            b.cohort,
            b.accepted,
            b.steps,
            b.epochs,
        )
    for x, y in zip(here, there, strict=True):
        assert float((y - x).norm() / x.norm()) < 1e-5


def test_a_run_whose_actors_are_killed_equals_the_undisturbed(tmp_path: Path, engine: Ray) -> None:
    part = EagerMortal(folder=str(tmp_path), times=2, parent=os.getpid())
    mortal, calm = Method("mortal", (part,)), Method("calm", (replace(part, times=0),))
    _, _, disturbed = play(settings_of(mortal), engine, 2)
    assert len(list(tmp_path.iterdir())) == 2
    assert engine._crew is not None
    ray.kill(engine._crew.hands[0].actor)  # one that has nothing to do
    _, _, undisturbed = play(settings_of(calm), engine, 2)
    assert torch.equal(disturbed[-1], undisturbed[-1])


def test_work_that_kills_every_actor_is_given_up(tmp_path: Path, engine: Ray) -> None:
    part = EagerMortal(folder=str(tmp_path), times=10**6, parent=os.getpid())
    with pytest.raises(UserError, match="3 workers of engine ray died .*client"):
        play(settings_of(Method("deadly", (part,))), engine, 1)


def test_from_a_config(engine: Ray) -> None:
    problem = {"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2}
    local = {"epochs": 2, "lr": 0.1}
    result = run(problem=problem, client_weights="equal", local=local, engine="ray", workers=1)
    assert [record["theta"][0] for record in result.rounds] == pytest.approx([0.735, 0.542875])
    assert result.plan.config.complete()["workers"] == 1 and ray.is_initialized()


def test_a_cluster_without_a_free_core_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "PATIENCE", 1)
    full = SimpleNamespace(available_resources=dict, cluster_resources=lambda: {"CPU": 4.0})
    with pytest.raises(UserError, match="none of the Ray cluster's 4 cores is free"):
        ray_engine.free_cores(full)


# ---- data; without a cluster ----
def test_rows_are_stored_once_a_client() -> None:
    stored: list[Any] = []
    shards = PoolShards(lambda value: stored.append(value) or len(stored), most=10**6)
    pool = torch.randn(10, 3)
    first = shards(pool, torch.arange(4))
    assert shards(pool, torch.arange(4)) == first and len(stored) == 1
    assert shards(pool, torch.arange(5)) != first and shards(pool.clone(), torch.arange(4)) != first
    assert len(stored) == 3


def test_old_rows_make_room() -> None:
    stored: list[Any] = []
    shards = PoolShards(lambda value: stored.append(value) or len(stored), most=100)
    pool = torch.randn(10, 3)
    for begin in (0, 4, 0):  # 48 bytes each
        shards(pool, torch.arange(begin, begin + 4))
    assert len(stored) == 2
    shards(pool, torch.arange(2, 6))  # the oldest goes: it was not 0
    shards(pool, torch.arange(0, 4))
    assert len(stored) == 3
    shards(pool, torch.arange(4, 8))
    assert len(stored) == 4


def test_an_actor_fetches_rows_once() -> None:
    fetched: list[int] = []
    shards = PoolShards(lambda value: value)
    held = Held(lambda value: fetched.append(1) or value, most=100)
    pool = torch.randn(10, 3)
    shard = shards(pool, torch.arange(4))
    assert torch.equal(held(shard), pool[:4]) and torch.equal(held(shard), pool[:4])  # type: ignore[arg-type]
    assert len(fetched) == 1
    held(shards(pool, None))
    held(shard)
    assert len(fetched) == 3  # the pool took all the room
    assert held(7) == 7 and torch.equal(held(array(pool)), pool)  # type: ignore[arg-type]
