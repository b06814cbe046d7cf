"""The loop stood in for a step that cannot be compiled while other threads still ran the same
network: weights were off by up to a third."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal.core.task import ModuleTask, Task
from shoal.engines.loop import Loop
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.parts.continual.task_matching import DetectorTask
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View


class Slow(nn.Module):
    """Long enough in its forward pass for another thread to come in."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.relu(self.kernel(x)).flatten(1)
        time.sleep(0.002)
        logits: Tensor = self.head(found)
        return logits


@dataclass(frozen=True, kw_only=True)
class Branching(Part):
    """Decides by a number, which no recording can."""

    def grad(self, view: View, inner: GradFn) -> Tensor:
        gradient = inner(view.x)
        return gradient if float(gradient.sum()) > 0 else 0.5 * gradient


@pytest.mark.parametrize("around", [lambda task: task, DetectorTask], ids=["bare", "wrapped"])
def test_the_loop_stands_in_on_a_network_of_its_own(
    around: Callable[[ModuleTask], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MILLISECOND", 1)  # as a larger model: chunks for many threads
    world = SmallWorld(clients=12, features=(1, 4, 4), dtype=torch.float64)
    task = around(ModuleTask(Slow, classes=3, dtype=torch.float64, shape=(1, 4, 4)))
    settings = settings_for(Method("branching", (Branching(),)), world, task, epochs=1)
    slow = play(settings, Loop(), 2)[2][-1]
    engine = Stacked(threads=4)
    fast = play(settings, engine, 2)[2][-1]
    engine.close()
    assert torch.equal(slow, fast)
    assert len(engine.notes) == 1 and "one by one" in engine.notes[0]
