"""A network's tensors are exchanged while it runs: two threads must never run the same one."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import nn

from shoal import catalog
from shoal.core import task
from shoal.core.task import ModuleTask
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked


class Convolution(nn.Module):
    """Not stackable: clients are trained one at a time, by two threads."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(1, 2, 3, padding=1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.kernel(x.unsqueeze(1)).flatten(1))
        return logits


def test_what_is_not_recorded_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAgg's clients take full gradients before they train: a shape's first times are plain."""
    running: list[int] = []
    most: list[int] = []
    plain = task.functional_call

    def slow(module: nn.Module, *rest: Any) -> Any:
        running.append(id(module))
        most.append(running.count(id(module)))
        time.sleep(0.002)  # long enough for another thread to come in
        try:
            return plain(module, *rest)
        finally:
            running.remove(id(module))

    monkeypatch.setattr(task, "functional_call", slow)
    monkeypatch.setattr(plan, "MILLISECOND", 1)  # or little work stays in one thread
    world = SmallWorld()
    width = world.train(0, 0).pool.x.shape[1]
    network = ModuleTask(partial(Convolution, width, world.classes), classes=world.classes)
    settings = settings_for(catalog.fedagg(epochs=1), world, network, epochs=1)
    play(settings, Stacked(threads=2), 2)
    assert max(most) == 1
    assert all(p.is_leaf for p in network.module.parameters())
