"""What happens on clusters: nothing hangs, no round is lost, and the record names it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mortal import Freezing, Greedy, Killing, Striking
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

from shoal import catalog
from shoal.core.errors import LostMachinesError, UserError
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.rounds.state import Settings
from shoal.runs.cluster import crew
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
WORLD = SmallWorld(clients=8)


def settings_of(*parts: Part) -> Settings:
    task = small_task(world=WORLD)
    return settings_for(Method("own", parts), WORLD, task, participation=1.0, epochs=1)


def undisturbed(rounds: int, engine: Engine | None = None) -> Tensor:
    return play(settings_of(), engine or Stacked(), rounds)[2][-1]


@pytest.fixture(scope="module")
def two(started: Make) -> Iterator[Any]:
    yield started(2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "HUNG", 4.0)
    monkeypatch.setattr(crew, "LATER", 1.0)


def test_an_actor_is_killed_in_a_round(two: Any, engine: Make, tmp_path: Path) -> None:
    made: Ray = engine(workers=2)
    part = Killing(folder=str(tmp_path), times=2, parent=os.getpid())
    _, _, found = play(settings_of(part), made, 2)
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(found[-1], undisturbed(2, Loop()))
    told = [note for note in made.notes if "is gone" in note]
    assert told and all("round" in note and "client" in note for note in told), list(made.notes)


def test_a_worker_with_nothing_to_do_is_killed(two: Any, engine: Make) -> None:
    made: Ray = engine(workers=2)
    play(settings_of(), made, 1)
    os.kill(int(made.crew.ready[0].place.rpartition(" ")[2]), 9)
    assert torch.equal(play(settings_of(), made, 2)[2][-1], undisturbed(2))


def test_stacked_clients_survive_a_killed_actor(
    two: Any, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MILLISECOND", 3000)
    made: Ray = engine(workers=2)
    world = SmallWorld(clients=300)
    settings = settings_for(catalog.scaffold(), world, small_task(world=world), participation=1.0)
    place = made.crew.ready[0].place
    threading.Timer(0.7, os.kill, (int(place.rpartition(" ")[2]), 9)).start()
    (_, _, here), (_, _, there) = (play(settings, e, 6) for e in (Stacked(), made))
    assert all(map(torch.equal, here, there))
    assert not any(hand.place == place for hand in made.crew.hands)


def test_work_that_kills_every_actor_is_given_up(two: Any, engine: Make, tmp_path: Path) -> None:
    part = Killing(folder=str(tmp_path), times=10**6, parent=os.getpid())
    with pytest.raises(UserError, match=r"3 workers of engine ray were lost .*client.*ray\.memory"):
        play(settings_of(part), engine(workers=2), 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_actor_freezes(workers: int, two: Any, engine: Make, tmp_path: Path) -> None:
    made: Ray = engine(workers=workers)
    part = Freezing(folder=str(tmp_path), parent=os.getpid())
    began = time.monotonic()
    _, _, found = play(settings_of(part), made, 2)
    assert torch.equal(found[-1], undisturbed(2, Loop())) and time.monotonic() - began < 60
    assert any("froze" in note for note in made.notes) or workers == 2


def test_a_share_raises(two: Any, engine: Make, tmp_path: Path) -> None:
    part = Striking(folder=str(tmp_path), parent=os.getpid())
    with pytest.raises(RuntimeError, match="this part is broken") as told:
        play(settings_of(part), engine(workers=2), 1)
    assert "in a worker" in "".join(told.value.__notes__)


def test_a_worker_runs_out_of_memory(two: Any, engine: Make, tmp_path: Path) -> None:
    made: Ray = engine(workers=2)
    part = Greedy(folder=str(tmp_path), parent=os.getpid())
    _, _, found = play(settings_of(part), made, 2)
    assert torch.equal(found[-1], undisturbed(2, Loop()))
    told = [note for note in made.notes if "ran out of memory" in note]
    assert told and "round 0" in told[0] and "client" in told[0], list(made.notes)


def test_work_for_which_no_worker_has_the_memory(two: Any, engine: Make, tmp_path: Path) -> None:
    part = Greedy(folder=str(tmp_path), times=10**6, parent=os.getpid())
    told = r"3 workers of engine ray were lost .*ran out of memory.*ray\.memory"
    with pytest.raises(UserError, match=told):
        play(settings_of(part), engine(workers=2), 1)


def test_nobody_is_ever_free(two: Any, engine: Make) -> None:
    with pytest.raises(LostMachinesError, match=r"no worker could start in 3 seconds.*16 cores"):
        play(settings_of(), engine(workers=1, cpus_per_worker=16, patience=3), 1)


def test_fewer_workers_than_asked_for_are_told(two: Any, engine: Make) -> None:
    made: Ray = engine(workers=50)
    assert torch.equal(play(settings_of(), made, 1)[2][-1], undisturbed(1))
    assert any("50 workers were asked for and 2 are there" in note for note in made.notes)
