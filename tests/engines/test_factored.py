"""Clients with few samples keep the change of the first layer as two factors; nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor

from shoal import catalog, models
from shoal.core.task import ModuleTask
from shoal.engines.api import Lender, Results
from shoal.engines.loop import Loop
from shoal.engines.stacked.compiled import Compiled
from shoal.engines.stacked.engine import RUN, Stacked
from shoal.engines.stacked.factored import run_factored
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plan import Path
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.slots import Part
from shoal.rounds.state import Settings

HIDDEN = 32


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each chunk was run with factors."""
    found: list[bool] = []

    def watched(compiled: Compiled, chunk: Chunk, lender: Lender) -> Results:
        results = run_factored(compiled, chunk, lender)
        found.append(results.counted)
        return results

    monkeypatch.setitem(RUN, Path.FACTORED, watched)
    return found


def settings_of(
    method: Method | None = None,
    *,
    rows: int = 10,
    features: tuple[int, ...] = (640,),
    dtype: torch.dtype = torch.float64,
    optimizer: Part | None = None,
    **more: Any,
) -> Settings:
    world = SmallWorld(clients=9, rows=(rows,), features=features, dtype=dtype)
    build = lambda: models.build("mlp", features, world.classes, hidden=(HIDDEN,))  # noqa: E731
    task = ModuleTask(build, classes=world.classes, dtype=dtype)
    more.setdefault("batch", 5)
    more.setdefault("epochs", 1)
    return settings_for(method or catalog.fedavg(), world, task, optimizer, **more)


def apart(settings: Settings) -> float:
    """How far three rounds end from the loop's, as a share of the way."""
    ours, theirs = (play(settings, engine, 3)[2][-1] for engine in (Stacked(), Loop()))
    way = theirs - settings.task.initial(settings.seed).theta
    assert float(way.norm()) > 1e-2
    return float((ours - theirs).norm() / way.norm())


CASES = {
    "one batch": settings_of(batch=None),
    "steps": settings_of(),
    "a short last step": settings_of(rows=12),
    "epochs": settings_of(epochs=3),
    "in file order": settings_of(shuffle=False),
    "weighed by samples": settings_of(uniform=False),
    "images": settings_of(features=(1, 20, 32)),
    "server optimiser": settings_of(catalog.fedadam()),
}


@pytest.mark.parametrize("name", CASES)
def test_factors_give_the_loops_model(name: str, taken: list[bool]) -> None:
    assert apart(CASES[name]) <= 1e-11
    assert taken and all(taken)


def test_single_precision_too(taken: list[bool]) -> None:
    assert apart(settings_of(dtype=torch.float32, epochs=3)) <= 1e-5
    assert all(taken)


def test_norms_are_those_of_the_changes(taken: list[bool]) -> None:
    settings = CASES["epochs"]
    ours, theirs = (play(settings, engine, 2)[1][-1] for engine in (Stacked(), Loop()))
    assert taken and all(taken)
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-10)


OTHERS = {
    "prox": settings_of(catalog.fedprox(mu=0.1)),
    "momentum": settings_of(optimizer=Sgd(momentum=0.9)),
    "weight decay": settings_of(optimizer=Sgd(weight_decay=0.01)),
    "more samples than outputs": settings_of(rows=HIDDEN + 1),
    "variates": settings_of(catalog.scaffold()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_hold_their_weights(name: str, taken: list[bool]) -> None:
    assert apart(OTHERS[name]) <= 1e-10
    assert not any(taken)


def test_a_client_that_is_not_a_number_is_left_out_by_name(taken: list[bool]) -> None:
    settings = settings_of()
    pool: Tensor = settings.world.train(4, 0).pool.x
    pool[settings.world.train(4, 0).rows[0]] = float("nan")
    ours, theirs = (play(settings, engine, 1) for engine in (Stacked(), Loop()))
    assert not all(taken)
    assert [r.client for r in ours[1][0].rejected] == [4]
    assert (ours[2][-1] - theirs[2][-1]).norm() <= 1e-11 * theirs[2][-1].norm()
