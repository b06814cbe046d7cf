"""What becomes of rows that do not fill a batch: the same on every engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import nn

from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.core.tree import leaves
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked

BATCH, EPOCHS = 5, 2
UNEQUAL, EQUAL = (12, 7, 21, 14, 3, 10), (13,)
WAYS = ("keep", "drop", "merge")
METHODS = {
    "fedavg": catalog.fedavg,
    "scaffold": catalog.scaffold,
    "fednova": catalog.fednova,
    "flash": catalog.flash,
}
CAPS: dict[str, int | tuple[int, ...] | None] = {"all": None, "three": 3, "own": (1, 4, 9)}


def network(norm: bool) -> nn.Module:
    middle = nn.BatchNorm1d(5) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(6, 5), middle, nn.Tanh(), nn.Linear(5, 3))


def lengths(rows: int, way: str) -> list[int]:
    """The batches of an epoch by hand."""
    whole, rest = divmod(rows, BATCH)
    full = [BATCH] * whole
    if not rest:
        return full
    if way == "keep" or not whole:
        return [*full, rest]
    return full if way == "drop" else [*full[:-1], BATCH + rest]


def expected(rows: int, way: str, cap: int | None) -> tuple[int, int]:
    """Steps and samples of a client's round by hand."""
    every = lengths(rows, way) * EPOCHS
    return len(every[:cap]), sum(every[:cap])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("rows", [UNEQUAL, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name: str, rows: tuple[int, ...], cap: str, way: Any) -> None:
    world = SmallWorld(rows=rows, dtype=torch.float64)
    norm = way != "keep"
    task = ModuleTask(lambda: network(norm), classes=3, dtype=torch.float64)
    settings = settings_for(
        METHODS[name](), world, task, batch=BATCH, epochs=EPOCHS, steps=CAPS[cap], last_batch=way
    )
    engines: list[Engine] = [Loop(), Stacked(threads=1)]
    played = [play(settings, engine, 2) for engine in engines]
    for engine in engines:
        engine.close()
    for federation, reports, _ in played:
        for report in reports:
            found = {c.client: (c.steps, c.samples) for c in report.clients}
            by_hand = {
                c: expected(rows[c % len(rows)], way, settings.cap(c)) for c in range(world.clients)
            }
            if name != "flash":  # which may stop early
                assert found == by_hand
        ends = zip(
            leaves((*federation.models, *federation.servers)),
            leaves((*played[0][0].models, *played[0][0].servers)),
            strict=True,
        )
        for own, first in ends:
            assert torch.allclose(own, first, rtol=1e-9, atol=1e-9)


def test_samples_of_an_epoch() -> None:
    """The three ways differ where rows are left over, and only there."""
    assert [lengths(12, way) for way in WAYS] == [[5, 5, 2], [5, 5], [5, 7]]
    assert [lengths(3, way) for way in WAYS] == [[3], [3], [3]]
    assert len({tuple(lengths(10, way)) for way in WAYS}) == 1
