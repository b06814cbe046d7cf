"""Unequal clients share a few stack sizes, and nothing of it shows in what they train."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor, nn

from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.core.types import Batch
from shoal.engines.api import Sums, SumTree
from shoal.engines.loop import Loop
from shoal.engines.stacked.compiled import Compiled
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.layout import Epoch, Piece
from shoal.methods.method import Method
from shoal.methods.parts.adaptive_work import EarlyStop
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.slots import Part
from shoal.methods.view import View
from shoal.rounds.state import Settings

ROWS = (12, 7, 20, 13, 5, 9, 17, 3)
STOPPING = Method("stopping", (EarlyStop(gamma=0.05),))


@dataclass(frozen=True, kw_only=True)
class StopAfterTwo(Part):
    """Decides by the epoch itself, which no tensor can stand for."""

    def stop(self, view: View) -> Tensor:
        return torch.tensor(bool(view.epoch >= 1))


def settings_of(method: Method, participation: int = 7, epochs: int = 4) -> Settings:
    world = SmallWorld(clients=24, rows=ROWS, rounds=20, dtype=torch.float64)
    task = small_task(world=world, dtype=torch.float64)
    return settings_for(method, world, task, participation=participation, epochs=epochs, batch=4)


def compiled_of(engine: Stacked) -> Compiled:
    (compiled,) = (made for known in engine._programs.values() for made in known.made.values())
    return compiled


METHODS = {
    "plain": catalog.fedavg(),
    "pulled": catalog.fedprox(mu=0.5),
    "kept": catalog.scaffold(),
    "stopping": STOPPING,
    "pulled and stopping": catalog.fedprox(mu=0.5) | STOPPING,
    "stopping by the epoch": Method("two", (StopAfterTwo(),)),
    "personal": catalog.ditto(),
    "momentum": catalog.fedavg(),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("capped", [False, True])
def test_clients_of_all_sizes_train_as_they_would_alone(name: str, capped: bool) -> None:
    settings = settings_of(METHODS[name])
    if name == "momentum":
        settings = replace(settings, program=replace(settings.program, optimizer=Sgd(momentum=0.9)))
    if capped:
        settings = replace(settings, steps=(6, 2, 9, 4))
    _, slow_reports, expected = play(settings, Loop(), 4)
    _, fast_reports, found = play(settings, Stacked(threads=1), 4)
    for a, b in zip(slow_reports, fast_reports, strict=True):
        assert (a.steps, a.samples, a.epochs) == (b.steps, b.samples, b.epochs)
    assert float((found[-1] - expected[-1]).norm() / expected[-1].norm()) < 1e-12


def test_clients_that_stop_early_need_few_traces() -> None:
    engine = Stacked(threads=1)
    _, reports, _ = play(settings_of(STOPPING), engine, 12)
    assert len({epochs for report in reports for epochs in report.epochs}) > 1
    compiled = compiled_of(engine)
    assert len(compiled._steps) <= 3  # stacks of 8, 4 and 1
    assert all(len(traces) == 1 for _, traces in compiled._steps.values())


def test_one_trace_of_an_epochs_end_serves_all_epochs() -> None:
    engine = Stacked(threads=1)
    play(settings_of(STOPPING), engine, 6)
    ends = [
        t
        for shape, (_, t) in compiled_of(engine)._functions._known.items()
        if shape[0] == "epoch_end"
    ]
    assert ends and all(len(traces) == 1 for traces in ends)


def test_a_part_that_decides_by_the_epoch_has_a_trace_for_each() -> None:
    engine = Stacked(threads=1)
    _, reports, _ = play(settings_of(METHODS["stopping by the epoch"]), engine, 2)
    assert not [note for note in engine.notes if "TorchScript" not in note]
    assert {epochs for report in reports for epochs in report.epochs} == {2}
    ends = [
        t
        for shape, (_, t) in compiled_of(engine)._functions._known.items()
        if shape[0] == "epoch_end"
    ]
    assert max(len(traces) for traces in ends) == 2


def test_short_batches_of_lone_clients_are_padded_to_quarters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that runs alone pays for every row of padding; four lengths are compiled."""
    seen: list[int] = []
    plain = Epoch.batch

    def batch(epoch: Epoch, piece: Piece, *places: int) -> Batch:
        seen.append(piece.length)
        return plain(epoch, piece, *places)

    monkeypatch.setattr(Epoch, "batch", batch)
    world = SmallWorld(rows=(17, 5, 20, 10, 23, 8), features=(2, 6), dtype=torch.float64)
    build = lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
    task = ModuleTask(build, classes=3, dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task, batch=8, epochs=1)
    ours, theirs = (play(settings, engine, 2)[2][-1] for engine in (Stacked(1), Loop()))
    assert set(seen) == {2, 4, 6, 8}  # 1 of 17, 5, 4 of 20, 2 of 10 and 7 of 23
    assert (ours - theirs).norm() <= 1e-9 * theirs.norm()


@pytest.mark.parametrize("chunks", [1, 3, 4, 5, 16, 17, 70])
def test_sums_do_not_depend_on_the_order_of_arrival(chunks: int) -> None:
    source = torch.Generator().manual_seed(0)
    none, left_out = torch.zeros(0), 2
    rows = [torch.randn(100, generator=source) for _ in range(chunks)]
    mixed = torch.randperm(chunks, generator=source).tolist()
    found = []
    for arrival in (range(chunks), range(chunks - 1, -1, -1), mixed):
        sums, room = SumTree(chunks), torch.empty(100)
        for chunk in arrival:
            room.copy_(rows[chunk])  # memory that is used again
            sums.put(chunk, None if chunk == left_out else Sums(room, none, (), 0.1 + chunk))
        room.zero_()
        assert sums.total is not None
        found.append(sums.total.delta)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    want = sum((0.1 + k) * rows[k].double() for k in range(chunks) if k != left_out)
    assert isinstance(want, torch.Tensor)
    assert torch.allclose(found[0].double(), want, atol=1e-3)
