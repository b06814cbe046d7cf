"""Several models at once keep their figures, ends and memories apart; a failed attempt changes
nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shoal import catalog
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Job, Kind, Model
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.methods.method import Method
from shoal.methods.parts.several_models import ModelPerDrift
from shoal.methods.slots import Part
from shoal.methods.view import ServerView, View
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation, Settings
from shoal.rounds.uploads import Guard
from shoal.runs import checkpoint
from tests.support import SmallWorld, play, settings_for, small_task


@dataclass(frozen=True, kw_only=True)
class EveryModel(Part):
    """Two models; everybody trains both."""

    def initial_models(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        return (view.model, view.task.initial(seed + 1))

    def assign_models(self, view: ServerView) -> list[Job]:
        return [Job(client, k) for k in range(len(view.models)) for client in view.cohort]


BOTH = Method("both", (EveryModel(),), base=False)


def always_new() -> Method:
    """FedDrift that finds a drift whenever it looks: below what the catalog lets a user ask for."""
    return Method("always new", (ModelPerDrift(delta=-1.0, every=1),))


@dataclass(frozen=True)
class Concepts(SmallWorld):
    """A world with two concepts; the second flips the labels."""

    concept_count = 2

    def concept(self, client: int, round: int) -> int:
        return round % 2

    def concept_shares(self, round: int) -> dict[int, float]:
        return {round % 2: 1.0}

    def under(self, client: int, concept: int, round: int) -> ClientData:
        data = self.train(client, round)
        return replace(data, labels=(data.labels + concept) % self.classes)


def fresh(settings: Settings) -> Federation:
    first = settings.world.at(0)
    initial = settings.task.initial(settings.seed)
    return Federation.fresh(settings, initial, first, settings.rates(first)[0])


# ---- figures ----
def test_figures_of_two_models_do_not_overwrite_each_other() -> None:
    settings = settings_for(
        catalog.fedavg() | BOTH | catalog.measure_divergence(), SmallWorld(), small_task()
    )
    figures = play(settings, Loop(), 1)[1][0].figures
    assert {"model_0.divergence", "model_1.divergence"} <= set(figures)
    assert "divergence" not in figures
    assert figures["model_0.divergence"] != figures["model_1.divergence"]


def test_the_keeper_of_the_bank_speaks_once() -> None:
    settings = settings_for(always_new(), SmallWorld(), small_task())
    for report in play(settings, Loop(), 3)[1]:
        assert list(report.figures) == ["models"]


# ---- ends ----
def test_the_second_model_gets_its_teacher() -> None:
    """Oracle with FLwF-2T: every client ends a task with a model per concept, and learns from
    either."""
    method = catalog.flwf_2t() | Method("oracle", catalog.oracle().parts, base=False)
    world = Concepts(shifts={2: "domain"})
    settings = settings_for(method, world, small_task(world=world))
    federation, _, _ = play(settings, Loop(), 3)
    teacher = next(i for i, p in enumerate(method.parts) if p.fills("client_session_end"))
    for k in range(2):
        for client in range(world.clients):
            kept = federation.store.get(client, k)
            assert kept is not None and float(kept[teacher].known) == 1.0, (client, k)


@dataclass(frozen=True, kw_only=True)
class CountsEnds(Part):
    """A client counts the ends that it hears of."""

    resets = "nothing"

    def memory(self, view: View) -> Tree:
        return (torch.zeros(()),)

    def client_end(self, view: View, work: Any) -> Tree:
        return view.memory

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        return view.state, ()

    def client_session_end(self, view: View) -> Tree:
        return (view.memory[0] + 1.0,)


def test_ends_of_one_part_do_not_hide_those_of_another() -> None:
    """One part hears three changes, the other only the last: a client hears of all four."""
    often, seldom = CountsEnds(on=("domain",)), CountsEnds(on=("classes",))
    method = catalog.fedavg() | Method("ends", (often, seldom), base=False)
    kinds: dict[int, Kind] = {1: "domain", 2: "domain", 3: "classes"}
    world = SmallWorld(shifts=kinds)
    settings = settings_for(method, world, small_task())
    federation, _, _ = play(settings, Loop(), 4)
    first = method.index(often)
    for client in range(world.clients):
        kept = federation.store.get(client, 0)
        assert kept is not None
        assert [float(kept[i][0]) for i in (first, first + 1)] == [2.0, 1.0]


def test_a_replaced_model_forgets_ends() -> None:
    settings = settings_for(catalog.fedavg() | BOTH, SmallWorld(), small_task())
    federation = fresh(settings)
    federation.endings = {(0, 0): (1, ()), (1, 0): (1, ())}
    federation.ended = {(4, 0): 1, (4, 1): 1}
    other = settings.task.initial(9)
    federation.use_models(settings, [federation.models[0], other], settings.world.at(0), 0.1)
    assert set(federation.endings) == {(0, 0)} and set(federation.ended) == {(4, 0)}


def test_checkpoints_of_version_0_1_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    """They have one entry per client, and one end per part, for all models."""
    settings = settings_for(catalog.fedavg() | BOTH, SmallWorld(), small_task())
    federation = fresh(settings)
    real = checkpoint._frozen_state

    def old(*arguments: Any) -> dict[str, Any]:
        kept = {"endings": [[1, 4, []]], "ended": [[3, 4], [1, 2]], "paid": [[9, 1]]}
        return real(*arguments) | kept

    monkeypatch.setattr(checkpoint, "_frozen_state", old)
    checkpoint.save(tmp_path / "checkpoint", federation, (0, 0), "x")
    saved = checkpoint.load(tmp_path / "checkpoint", "x", "cpu")
    assert saved is not None
    assert saved.federation.endings == {(0, 1): (4, ()), (1, 1): (4, ())}
    assert saved.federation.ended == {(3, 0): 4, (3, 1): 4, (1, 0): 2, (1, 1): 2}
    assert saved.federation.paid == {(9, 0): 1, (9, 1): 1}


# ---- a failed attempt ----
class Failing(Loop):
    """Loses every upload of the first attempts."""

    def __init__(self, attempts: int) -> None:
        self.left = attempts

    def train(self, order: Order) -> Iterator[Results]:
        fails = self.left > 0
        self.left -= fails
        for results in super().train(order):
            bad = torch.full_like(results.delta, float("nan"))
            yield results._replace(delta=bad) if fails else results


def pieces(federation: Federation) -> dict[str, Any]:
    """All that changes, by value."""
    return {
        "models": [m.theta.tolist() for m in federation.models],
        "servers": repr(federation.servers),
        "memories": repr(list(federation.store.items())),
        "ends": (dict(federation.ended), repr(federation.endings)),
        "noticed": federation.noticed,
    }


def test_a_failed_attempt_leaves_no_assignments_of_feddrift() -> None:
    """A retry chooses other clients; those of the failed attempt were never assigned."""
    method = always_new()
    settings = settings_for(
        method, SmallWorld(), small_task(), participation=2, guard=Guard(retries=1)
    )
    federation = fresh(settings)
    report = play_round(federation, settings, settings.world.at(0), Failing(1))
    assert report.attempts == 2 and not report.abandoned
    ids = federation.servers[0][0].ids
    assert sorted(ids[ids >= 0].tolist()) == sorted(report.cohort)


def test_an_abandoned_round_changes_nothing_and_its_costs_stay() -> None:
    method = always_new() | catalog.flwf_2t()
    world = SmallWorld(shifts={2: "domain"})
    settings = settings_for(method, world, small_task(), guard=Guard(retries=1))
    federation, _, _ = play(settings, Loop(), 2)
    before = copy.deepcopy(pieces(federation))
    report = play_round(federation, settings, world.at(2), Failing(99), world.at(1))
    assert report.abandoned and report.attempts == 2
    assert pieces(federation) == before
    assert report.bytes_down > 0 and report.bytes_up > 0 and report.probing.bytes_down > 0
    again = play_round(federation, settings, world.at(2), Loop(), world.at(1))
    assert not again.abandoned and pieces(federation) != before
