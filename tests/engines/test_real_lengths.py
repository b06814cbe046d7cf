"""A client that runs alone takes a short batch as it is, where a network normalises over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal import catalog
from shoal.core.layers import normalisation
from shoal.core.task import ModuleTask
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.engines.stacked import compiled, plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds.state import Settings

# short batches of 2 and 3 rows, and a client with no other; two full ones; one whose two are full
ROWS = (12, 8, 20, 13, 3, 10)


def small() -> nn.Module:
    head = (nn.Flatten(), nn.Linear(64, 3))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), *head)


def settings_of(method: Method, batch: int | None = 5, rows: tuple[int, ...] = ROWS) -> Settings:
    world = SmallWorld(rows=rows, features=(1, 4, 4), dtype=torch.float64)
    task = ModuleTask(small, classes=3, dtype=torch.float64)
    return settings_for(method, world, task, batch=batch)


WAYS = {"played": 1, "compiled": 10**12}  # multiply-adds of a large step
METHODS: dict[str, Callable[[], Method]] = {
    "fedavg": catalog.fedavg,
    "scaffold": catalog.scaffold,
    "fedsam": catalog.fedsam,
    "fedagg": partial(catalog.fedagg, epochs=2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", METHODS)
def test_short_batches_give_what_padded_ones_give(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(METHODS[name]())
    slow, _, thetas = play(settings, Loop(), 3)
    monkeypatch.setattr(plan, "PLAYED_STEP", WAYS[way])
    fast, _, found = play(settings, Stacked(threads=1), 3)
    assert torch.allclose(found[-1], thetas[-1], rtol=1e-9, atol=1e-11)
    assert torch.allclose(fast.models[0].stats, slow.models[0].stats, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
def test_no_step_pads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that counts rows of padding as nothing is not taken, and only lengths that are there
    are."""
    seen = set[int]()

    def refused(layer: nn.Module, x: Tensor) -> Tensor:
        raise AssertionError("a batch was padded")

    def whole(layer: normalisation._Pure, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.add(x.shape[0])
        return plain(layer, x)

    settings, plain = settings_of(catalog.fedavg()), normalisation._Pure._whole
    assert settings.pad, "which is found out by padding a batch"
    monkeypatch.setattr(normalisation._Pure, "_masked", refused)
    monkeypatch.setattr(normalisation._Pure, "_whole", whole)
    monkeypatch.setattr(plan, "PLAYED_STEP", WAYS[way])
    engine = Stacked(threads=1)
    play(settings, engine, 2)
    assert not any("engine loop" in note for note in engine.notes)
    assert seen == {5, 2, 3}


@pytest.mark.parametrize("way", WAYS)
def test_large_steps_of_other_lengths_are_not_compiled(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = list[int]()
    step = compiled.Compiled._compile

    def counted(self: compiled.Compiled, call: compiled.StepCall, bound: compiled.Bound) -> object:
        lengths.append(call.batch.x.shape[1])
        return step(self, call, bound)

    monkeypatch.setattr(compiled.Compiled, "_compile", counted)
    monkeypatch.setattr(plan, "PLAYED_STEP", WAYS[way])
    play(settings_of(catalog.fedavg()), Stacked(threads=1), 2)
    assert sorted(lengths) == {"played": [5], "compiled": [2, 3, 5]}[way]


def test_many_lengths_of_small_steps_and_lone_rows_are_padded() -> None:
    order = play_order(settings_of(catalog.fedavg(), batch=64, rows=(70, 90)))
    assert not plan.real_lengths(order) and not plan.plays(order)
    assert plan.real_lengths(play_order(settings_of(catalog.fedavg())))
    assert not plan.real_lengths(play_order(settings_of(catalog.fedavg(), rows=(8,))))


def test_small_steps_that_can_be_stacked_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices between normalisations: company is worth more than real lengths up to a size."""

    def layers() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    world = SmallWorld(rows=ROWS, features=(1, 4, 4))
    settings = settings_for(catalog.fedavg(), world, ModuleTask(layers, classes=3), batch=5)
    order = play_order(settings)
    assert plan.plan_for(order, lambda *_: "").stacked and not plan.real_lengths(order)
    monkeypatch.setattr(plan, "NORMALISED_STEP", plan.step_work(order))
    assert not plan.plan_for(order, lambda *_: "").stacked and plan.real_lengths(order)


def play_order(settings: Settings) -> Order:
    """The order of a first round."""
    found = list[Order]()

    class Told(Loop):
        def train(self, order: Order) -> Iterator[Results]:
            found.append(order)
            return super().train(order)

    play(settings, Told(), 1)
    return found[0]


def test_threads_change_no_bit_of_what_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PLAYED_STEP", 1)
    played = list[int]()
    step = compiled.Compiled.play
    monkeypatch.setattr(
        compiled.Compiled, "play", lambda self, *rest: (played.append(1), step(self, *rest))[1]
    )
    settings = settings_of(catalog.scaffold())
    found = [play(settings, Stacked(threads=n), 3)[2][-1] for n in (1, 2, 5, 1)]
    assert played
    assert all(torch.equal(found[0], other) for other in found[1:])
