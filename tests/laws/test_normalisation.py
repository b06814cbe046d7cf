"""Law 1 for networks that normalise: batches, groups, with padding and with running statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn

from shoal import catalog
from shoal.core.task import ModuleTask
from shoal.core.tree import leaves
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method

METHODS: dict[str, Callable[[], Method]] = {
    "fedavg": catalog.fedavg,
    "moon": catalog.moon,
    "fedagg": lambda: catalog.fedagg(epochs=2),
    "scaffold, whole gradients": lambda: catalog.scaffold(option=1),
    "ditto": catalog.ditto,
    "apfl": catalog.apfl,
}


class Net(nn.Module):
    """Features of a normalised layer, and a head."""

    def __init__(self, body: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.body, self.norm, self.head = body, norm, nn.LazyLinear(3)
        self(torch.randn(2, 1, 4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.norm(self.body(x))).flatten(1)
        return self.head(features), features


def convolution(norm: nn.Module) -> Net:
    return Net(nn.Conv2d(1, 4, 3, padding=1), norm)


NETS: dict[str, Callable[[], nn.Module]] = {
    "groups": lambda: convolution(nn.GroupNorm(2, 4)),
    "batches": lambda: convolution(nn.BatchNorm2d(4)),
    "batches, no memory": lambda: convolution(nn.BatchNorm2d(4, track_running_stats=False)),
    "rows": lambda: Net(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), nn.BatchNorm1d(5)),
}


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-9)) if b.numel() else 0.0


UNEQUAL, EQUAL = (12, 7, 22, 12, 8, 9), (8,)


@pytest.mark.parametrize("net,rows", [*((net, UNEQUAL) for net in NETS), ("batches", EQUAL)])
@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name: str, net: str, rows: tuple[int, ...]) -> None:
    """Batches have two rows or more: one row alone has no variance."""
    world = SmallWorld(rows=rows, features=(1, 4, 4), dtype=torch.float64)
    task = ModuleTask(NETS[net], classes=3, dtype=torch.float64)
    settings = settings_for(METHODS[name](), world, task, batch=5)
    slow, _, _ = play(settings, Loop(), 3)
    fast, _, _ = play(settings, Stacked(threads=1), 3)
    ends = [leaves((*f.models, *f.servers)) for f in (slow, fast)]
    assert max(gap(b, a) for a, b in zip(*ends, strict=True)) < 1e-9
    kept = [[leaves(memory) for _, memory in f.store.items()] for f in (slow, fast)]
    gaps = [gap(b, a) for x, y in zip(*kept, strict=True) for a, b in zip(x, y, strict=True)]
    assert max(gaps, default=0.0) < 1e-9


def test_statistics_are_of_the_rows_and_not_of_padding() -> None:
    """What a client ends with is what torch's own layer ends with on its rows alone."""
    world = SmallWorld(clients=2, rows=(3, 5), features=(1, 4, 4), dtype=torch.float64)
    task = ModuleTask(NETS["batches"], classes=3, dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task, batch=None, epochs=1)
    start = task.initial(settings.seed)
    federation, _, _ = play(settings, Stacked(threads=1), 1)
    means = []
    for client in (0, 1):
        plain = NETS["batches"]().double().train()
        plain.load_state_dict(task.export(start))
        data = world.train(client, 0)
        plain(data.pool.x[data.rows])
        means.append(plain.norm.running_mean * len(data) / 8)
    assert gap(federation.models[0].stats[:4], sum(means)) < 1e-12
