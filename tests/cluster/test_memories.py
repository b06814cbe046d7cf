"""What clients remember lives on the nodes, on two of them each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.rounds.state import Settings
from shoal.runs.cluster import crew
from shoal.runs.cluster.memories import MemoryBlock
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
WIDE = SmallWorld(clients=41, features=(6000,))  # 72 KB a client


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LATER", 60.0)
    monkeypatch.setattr(plan, "MILLISECOND", 300_000)


@pytest.fixture(scope="module")
def three(started: Make) -> Iterator[Any]:
    yield started(1, 1, 1)


def settings_of(name: str, participation: float = 1.0) -> Settings:
    task = small_task(world=WIDE)
    return settings_for(catalog.METHODS[name](), WIDE, task, participation=participation, epochs=1)


def blocks(made: Ray) -> list[MemoryBlock]:
    return list(made._keeper._blocks)


@pytest.mark.parametrize("part", [1.0, 0.3])
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "ditto"])
def test_memories_stay_on_two_nodes_each(name: str, part: float, three: Any, engine: Make) -> None:
    made: Ray = engine(workers=3)
    _, _, here = play(settings_of(name, part), Stacked(), 5)
    federation, _, there = play(settings_of(name, part), made, 5)
    assert all(map(torch.equal, here, there))
    assert blocks(made) and not federation.store.resident
    for block in blocks(made):
        assert len({copy.node for copy in block.copies}) == 2 and not block.saved


def test_what_is_read_here_is_what_one_machine_remembers(three: Any, engine: Make) -> None:
    settings = settings_of("scaffold", 0.5)
    one, _, _ = play(settings, Stacked(), 3)
    many, _, _ = play(settings, engine(workers=3), 3)
    assert one.store.nbytes() == many.store.nbytes() and len(one.store) == len(many.store) > 20
    for (key, here), (other, there) in zip(one.store.items(), many.store.items(), strict=True):
        assert key == other and str(here) == str(there)
        assert all(torch.equal(a, b) for a, b in zip(here[0], there[0], strict=True))


def test_shares_go_where_their_clients_memories_are(three: Any, engine: Make) -> None:
    made: Ray = engine(workers=3)
    given: list[bool] = []
    best = made.crew.best

    def watched(idle: Any, index: int) -> Any:
        hand, home = best(idle, index), made.crew._homes(index)
        if home:
            given.append(home.get(hand.node, 0) == max(home.values()))
        return hand

    made.crew.best = watched  # type: ignore[method-assign]
    play(settings_of("scaffold"), made, 6)
    assert len(given) >= 15 and sum(given) > 0.6 * len(given)
