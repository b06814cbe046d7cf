"""A slot that a part calls idle does nothing there."""

from __future__ import annotations

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.engines.base import Engine
from shoal.engines.loop import Loop
from shoal.engines.vectorized import Vectorized
from shoal.method import Method

METHODS = {"fedagg, one epoch": catalog.fedagg(epochs=1)}


def final(method: Method, engine: Engine) -> torch.Tensor:
    world = SmallWorld()
    settings = settings_for(method, world, small_task(world=world), epochs=1)
    return play(settings, engine, 3)[2][-1]


@pytest.mark.parametrize("engine", [Loop, Vectorized])
@pytest.mark.parametrize("name", METHODS)
def test_idle_slots_change_nothing(
    name: str, engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS[name]
    idle = [part for part in method.parts if part.idle]
    assert idle
    without = final(method, engine())
    for part in idle:
        monkeypatch.setattr(type(part), "idle", frozenset())
    assert all(part.acts(slot) for part in idle for slot in ("after_epoch",))
    assert torch.equal(final(method, engine()), without)


def test_a_remembered_trajectory_is_written_at_the_only_epoch() -> None:
    remembered = catalog.fedagg(phi="history", epochs=1)
    assert not any(part.idle for part in remembered.parts)
