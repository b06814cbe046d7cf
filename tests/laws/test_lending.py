"""Law: memory that an engine lends is never written over while somebody still holds what is in it.

What comes back is spoilt at once (filled with NaN) here, and so is a room that is lent anew, so
whoever looks once too often sees it, and not in the unlucky order of two threads alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support import SmallWorld, settings_for, small_task
from torch import Tensor

from shoal import catalog
from shoal.core import tree
from shoal.core.types import Job
from shoal.engines.api import Engine, Lender, Sums, SumTree
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds.orders import make_order
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Round, Settings

METHODS: dict[str, Callable[[], Method]] = {
    "fedavg": catalog.fedavg,
    "fedavgm": catalog.fedavgm,
    "scaffold": catalog.scaffold,
    "feddyn": catalog.feddyn,
    "ditto": catalog.ditto,
    "median": catalog.median,
}
ROWS = {"equal": (8,), "unequal": (12, 7, 20, 13, 5, 9, 3)}


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Many chunks of single clients, as of a large model; what was lent, to see that it was."""
    used, give, room = list[str](), Lender.give, Lender.room

    def given(lender: Lender, vector: Tensor) -> None:
        used.append("given")
        give(lender, vector.fill_(math.nan))

    def lent(lender: Lender, clients: int, like: Tensor) -> Tensor:
        used.append("room")
        return room(lender, clients, like).fill_(math.nan)

    monkeypatch.setattr(plan, "MILLISECOND", 1)
    monkeypatch.setattr(Lender, "give", given)
    monkeypatch.setattr(Lender, "room", lent)
    return used


def settings_of(name: str, rows: str, broken: bool = False) -> Settings:
    world = SmallWorld(clients=13, rows=ROWS[rows])
    if broken:  # one client whose upload is turned away
        world.pool.x[world.train(4, 0).rows] = math.nan
    return settings_for(METHODS[name](), world, small_task("mlp", world))


def held(settings: Settings, engine: Engine, rounds: int = 3) -> list[Tensor]:
    """Everything that a federation had after each round, held and not copied; it is as it was."""
    first = settings.world.at(0)
    federation = Federation.fresh(settings, settings.task.initial(3), first, 0.1)
    kept, copies, before = list[Tensor](), list[Tensor](), None
    for number in range(rounds):
        moment = settings.world.at(number)
        report = play_round(federation, settings, moment, engine, before)
        memories = tuple(own for _, own in federation.store.items())
        models = tuple((model.theta, model.stats) for model in federation.models)
        now = tree.leaves((models, tuple(federation.servers), memories))
        kept += [*now, torch.tensor(report.norms)]
        copies += [leaf.clone() for leaf in kept[len(copies) :]]
        before = moment
    assert all(map(torch.equal, kept, copies)), "a later round wrote over an earlier one's"
    return copies


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", METHODS)
def test_nobody_reads_what_was_given_back(
    name: str, rows: str, broken: bool, spoilt: list[str]
) -> None:
    settings = settings_of(name, rows, broken)
    found = []
    for threads in (1, 3):
        engine = Stacked(threads=threads)
        found.append(held(settings, engine))
        engine.close()
    with pytest.MonkeyPatch.context() as apart:  # memory of its own for everybody
        apart.setattr(Lender, "give", lambda lender, vector: None)
        apart.setattr(Lender, "room", lambda lender, n, like: like.new_empty(n, like.numel()))
        engine = Stacked(threads=1)
        expected = held(settings, engine)
        engine.close()
    for mine in found:
        assert all(map(torch.equal, mine, expected))
        assert all(leaf.isfinite().all() for leaf in mine)
    lends = name in ("fedavg", "fedavgm")  # the others keep what a client's round ends with
    assert not lends or {"room", "given"} <= set(spoilt)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", METHODS)
def test_results_that_are_held_stay_as_they_came(
    name: str, rows: str, summed: bool, spoilt: list[str]
) -> None:
    settings = settings_of(name, rows, broken=True)
    world, engine = settings.world, Stacked(threads=1)
    federation = Federation.fresh(settings, settings.task.initial(3), world.at(0), 0.1)
    order = make_order(
        Round(federation, settings, world.at(0)), 0, [Job(c) for c in range(13)], summed
    )
    kept, copies = list[Tensor](), list[Tensor]()
    for results in engine.train(order):
        leaves = (results.delta, results.stats, results.payloads, results.memories)
        kept += tree.leaves((*leaves, results.sums and results.sums[:3]))
        copies += [leaf.clone() for leaf in kept[len(copies) :]]
    list(engine.train(order))  # of the next round
    assert len(kept) > 13
    for one, other in zip(kept, copies, strict=True):
        assert torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7))


def test_a_branch_of_one_chunk_keeps_what_was_lent() -> None:
    sums, room = SumTree(1, lends=True), torch.ones(5)
    sums.put(0, Sums(room, torch.zeros(0), (), 2.0))
    room.zero_()
    assert sums.total is not None and sums.total.lent == 2.0
    assert sums.total.delta.tolist() == [1.0] * 5


def test_a_vector_is_nobody_elses_until_it_is_given_back() -> None:
    lender, like = Lender(), torch.zeros(4)
    one, other = lender.vector(like), lender.vector(like)
    assert one.data_ptr() != other.data_ptr()
    lender.give(one)
    assert lender.vector(like.double()).dtype == torch.float64  # of another kind: made anew
    lender.give(other)
    assert lender.vector(torch.zeros(3)).shape == (3,)
    lender.give(other)
    assert lender.vector(like) is other
    assert lender.vector(like).data_ptr() != other.data_ptr()
