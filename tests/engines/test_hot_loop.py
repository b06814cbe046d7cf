"""What a replayed round costs, counted instead of timed: calls from Python, and torch operations.

A timer on a shared machine proves nothing; these counts are the same on every machine. A change
that makes a round look at every client once more, or a step longer, shows here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support import SmallWorld, settings_for, small_task
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal import catalog
from shoal.engines.api import Results
from shoal.engines.compiler import graph
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View
from shoal.rounds.play import RoundReport, play_round
from shoal.rounds.state import Federation


class Operations(TorchDispatchMode):
    """Counts what reaches torch's dispatcher, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        self.count += not views
        return func(*args, **(kwargs or {}))


@dataclass
class Cost:
    calls: int
    operations: int


def cost_of_a_round(method: Method, clients: int, rows: int, batch: int = 4) -> Cost:
    """A round of an even cohort, after the rounds that trace."""
    world = SmallWorld(clients=clients, rows=(rows,))
    settings = settings_for(method, world, small_task(world=world), epochs=1, batch=batch)
    engine, first = Stacked(threads=1), world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(0), first, 0.1)
    held = {client: world.train(client, 0) for client in range(clients)}
    object.__setattr__(world, "train", lambda client, round: held[client])  # the engine's cost only
    for number in range(2):
        play_round(federation, settings, world.at(number), engine)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        play_round(federation, settings, world.at(2), engine)
    finally:
        sys.setprofile(None)
    with Operations() as operations:
        play_round(federation, settings, world.at(3), engine)
    return Cost(calls, operations.count)


def test_a_client_more_costs_few_calls_and_no_operation() -> None:
    few, many = (cost_of_a_round(catalog.fedavg(), clients, rows=8) for clients in (50, 150))
    assert many.operations == few.operations  # one stack of any size
    assert (many.calls - few.calls) / 100 <= CALLS_A_CLIENT


@pytest.mark.parametrize(
    ("method", "limit"),
    [(catalog.fedavg(), 15), (catalog.fedprox(), 18), (catalog.scaffold(), 16)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_step_more_costs_few_operations(method: Method, limit: int) -> None:
    short, long = (cost_of_a_round(method, 10, rows=rows) for rows in (8, 48))
    assert (long.operations - short.operations) / 10 <= limit
    if graph.TORCHSCRIPT:  # otherwise every operator is a call of Python
        assert (long.calls - short.calls) / 10 <= CALLS_A_STEP


CALLS_A_CLIENT = 34
CALLS_A_STEP = 22


@dataclass(frozen=True, kw_only=True)
class OneMore(Part):
    """One operation more in a step than there need be."""

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return inner(view.x).tanh()


def test_an_operation_more_in_a_step_is_seen() -> None:
    counts = []
    for method in (catalog.fedavg(), Method("one more", (OneMore(),), catalog.fedavg().weights)):
        short, long = (cost_of_a_round(method, 10, rows=rows) for rows in (8, 48))
        counts.append((long.operations - short.operations) / 10)
    assert counts[1] >= counts[0] + 1


class Watched(Stacked):
    """Keeps every result, with every delta or with sums only."""

    def __init__(self, summed: bool) -> None:
        super().__init__()
        self.summed = summed
        self.seen: list[Results] = []

    def train(self, order: Any) -> Any:
        for results in super().train(replace(order, summed=self.summed)):
            self.seen.append(results)
            yield results


def watched_round(summed: bool, bad: int | None = None) -> tuple[Watched, Federation, RoundReport]:
    """One round of six equal clients, of whom one may have data that are no numbers."""
    world = SmallWorld(clients=6, rows=(8,))
    if bad is not None:
        world.train(bad, 0).pool.x[world.train(bad, 0).rows] = float("nan")
    settings = settings_for(catalog.fedavg(), world, small_task(world=world), participation=6)
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    engine = Watched(summed)
    return engine, federation, play_round(federation, settings, world.at(0), engine)


def test_an_engine_that_adds_up_gives_the_same_mean() -> None:
    """The sum that comes with the last results is what all rows add up to."""
    rows, sums = watched_round(summed=False)[0].seen, watched_round(summed=True)[0].seen
    total = torch.zeros(())
    for results in rows:
        assert not results.counted and results.norms is not None
        assert isinstance(results.delta, torch.Tensor)
        total = total + (results.delta * torch.tensor(results.counts)[:, None]).sum(0)
        torch.testing.assert_close(torch.tensor(results.norms), results.delta.norm(dim=1))
    assert all(results.counted for results in sums)
    assert sums[-1].sums is not None and all(r.sums is None for r in sums[:-1])
    torch.testing.assert_close(sums[-1].sums.delta, total)


def test_deltas_that_nobody_asks_for_are_not_kept_and_change_nothing() -> None:
    (kept, with_deltas, _), (summed, without, _) = watched_round(False), watched_round(True)
    assert all(len(results.delta) == 0 for results in summed.seen)
    assert [r.norms for r in kept.seen] == [r.norms for r in summed.seen]
    assert torch.equal(with_deltas.models[0].theta, without.models[0].theta)


def test_a_client_that_is_not_finite_is_still_left_out_of_a_sum() -> None:
    (_, with_deltas, report), (_, without, other) = watched_round(False, 2), watched_round(True, 2)
    assert [r.client for r in report.rejected] == [r.client for r in other.rejected] == [2]
    assert torch.equal(with_deltas.models[0].theta, without.models[0].theta)
    assert bool(without.models[0].theta.isfinite().all())


@pytest.mark.skipif(not graph.TORCHSCRIPT, reason="every step is one call of Python")
def test_an_epoch_in_one_call_does_what_its_steps_do_one_by_one() -> None:
    engine, federation, _ = watched_round(summed=True)
    (compiled,) = (made for known in engine._programs.values() for made in known.made.values())
    replays = [replay for _, known in compiled._steps.values() for replay in known.values()]
    assert replays and all(replay.script is not None for replay in replays)
    for replay in replays:
        replay.script = None
    world = SmallWorld(clients=6, rows=(8,))
    settings = settings_for(catalog.fedavg(), world, small_task(world=world), participation=6)
    program = next(known.program for known in engine._programs.values())
    settings = replace(settings, program=program)
    again = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    play_round(again, settings, world.at(0), engine)
    assert torch.equal(again.models[0].theta, federation.models[0].theta)


def test_unequal_clients_are_traced_for_few_shapes() -> None:
    """Who is in a cohort changes every round; how many rows they have must not mean a new trace."""
    world = SmallWorld(clients=24, rows=(12, 7, 20, 13, 5, 9, 17, 3), rounds=20)
    settings = settings_for(
        catalog.fedavg(), world, small_task(world=world), epochs=1, participation=5
    )
    engine = Stacked(threads=1)
    federation = Federation.fresh(settings, settings.task.initial(0), world.at(0), 0.1)
    for number in range(12):
        play_round(federation, settings, world.at(number), engine)
    (compiled,) = (made for known in engine._programs.values() for made in known.made.values())
    shapes = [shape for shape, (_, known) in compiled._steps.items() for _ in known]
    assert len(shapes) <= 3  # 5 clients, 4 and 1, all with batches of one length
