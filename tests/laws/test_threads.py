"""Law: the bits of a run do not depend on how many threads compute it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method

METHODS: dict[str, Callable[[], Method]] = {
    "fedavg": catalog.fedavg,
    "scaffold": catalog.scaffold,
    "fedinit": lambda: catalog.fedinit(beta=0.1),
    "fedagg": lambda: catalog.fedagg(epochs=2),
    "ditto": catalog.ditto,
    "median": catalog.median,
    "flash": catalog.flash,
}
ROWS = {"equal": (8,), "unequal": (12, 7, 20, 13, 5, 9, 3)}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("network", ["mlp", "small_cnn"])
@pytest.mark.parametrize("name", METHODS)
def test_threads_change_no_bit(
    name: str, network: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MILLISECOND", 1)  # many chunks, as of a large model
    features = (6,) if network == "mlp" else (1, 8, 8)
    world = SmallWorld(clients=13, rows=ROWS[rows], features=features)
    settings = settings_for(METHODS[name](), world, small_task(network, world))
    found = []
    for threads in (1, 2, 5, 16):
        engine = Stacked(threads=threads)
        found.append(play(settings, engine, 2)[2][-1])
        engine.close()
    assert all(torch.equal(found[0], other) for other in found[1:])
