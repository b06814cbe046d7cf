"""Narrow networks with strided 1x1 convolutions must not crash the process (see Layout)."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import torch
from torch.func import grad
from shoal import models
from shoal.core.task import ModuleTask, mean_loss
from shoal.core.types import Batch
torch.set_num_threads(1)
task = ModuleTask(lambda: models.build("resnet18", (1, 8, 8), 10, width=4), classes=10)
model = task.initial(0)
batch = Batch(torch.randn(479, 1, 8, 8), torch.randint(0, 10, (479,)))
value = lambda t: mean_loss(task, task.forward(t, batch, model.stats, True), batch)
theta = model.theta
for _ in range(4):
    theta = theta - 0.05 * grad(value)(theta)
assert torch.isfinite(theta).all()
"""


def test_a_narrow_resnet_trains() -> None:
    """With kernels for AVX2, which a processor with AVX-512 would not take and which overrun."""
    where = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=where)
    assert done.returncode == 0, done.stderr[-500:]
