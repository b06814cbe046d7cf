"""Short batches were padded with another client's row; networks that mix rows differed by it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shoal import catalog, run
from shoal.core.task import ModuleTask
from shoal.core.types import Job
from shoal.engines.api import Engine
from shoal.engines.loop import Loop, epoch_order
from shoal.engines.stacked.engine import Stacked
from shoal.models.registry import model
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round, Settings

ROWS = (12, 7, 20, 13, 5, 9)
OTHERS = (1, 2, 3, 4, 5)  # client 0, whose first row is row 0 of the pool, never takes part


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        logits: Tensor = self.head(torch.relu(y - y.mean(0, keepdim=True)))
        return logits


@pytest.mark.parametrize("bad", [float("nan"), 1e30])
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_rows_of_others_are_nowhere(bad: float, engine: type[Loop] | type[Stacked]) -> None:
    found = []
    for first in (0.5, bad):
        world = SmallWorld(rows=ROWS)
        world.pool.x[0] = first
        settings = settings_for(catalog.fedavg(), world, small_task(world=world), batch=4,
                                cohorts=(OTHERS,) * 2)  # fmt: skip
        _, reports, thetas = play(settings, engine(), 2)
        assert all(len(report.accepted) == len(OTHERS) for report in reports)
        found.append(thetas[-1])
    assert torch.equal(*found)


def by_torch(settings: Settings) -> Tensor:
    """A round of FedAvg over all members, as torch does it, on batches in shoal's order."""
    task, world = settings.task, settings.world
    assert isinstance(task, ModuleTask)
    federation = Federation.fresh(settings, task.initial(settings.seed), world.at(0), 0.1)
    order = make_order(
        Round(federation, settings, world.at(0)), 0, [Job(c) for c in range(len(ROWS))]
    )
    net = deepcopy(task.module)
    total, weight = torch.zeros(task.layout.size, dtype=task.dtype), 0.0
    for member in order.members:
        for name, value in task.layout.unflatten(order.model.theta).items():
            net.get_parameter(name).data.copy_(value)
        data = member.train
        for epoch, rate in enumerate(order.rates):
            drawn = epoch_order(order, [member.client], [len(data)], epoch)[0]
            for chosen in drawn.split(settings.batch or len(data)):
                x, y = data.pool.x[data.rows[chosen]], data.labels[chosen]
                grads = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
                for parameter, grad in zip(net.parameters(), grads, strict=True):
                    parameter.data.sub_(rate * grad)
        total += data.count * torch.cat([p.data.flatten() for p in net.parameters()])
        weight += data.count
    return total / weight


@pytest.mark.parametrize("engine", [Loop(), Stacked(threads=1)], ids=lambda engine: engine.name)
def test_a_network_that_mixes_rows_is_not_padded(engine: Engine) -> None:
    world = SmallWorld(rows=ROWS, dtype=torch.float64)
    task = ModuleTask(Centred, classes=3, dtype=torch.float64)
    settings = settings_for(catalog.fedavg(), world, task, batch=4, epochs=2, uniform=False)
    assert world.pad and not settings.pad
    found = play(settings, engine, 1)[2][-1]
    expected = by_torch(settings)
    assert float((found - expected).norm() / expected.norm()) <= 1e-9


class Mixed(nn.Module):
    """Rows are added to others that are drawn, in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        if self.training:
            y = y + torch.bernoulli(y.new_full((1, 1), 0.5)) * y[torch.randperm(len(y))]
        logits: Tensor = self.head(y)
        return logits


def test_a_network_that_mixes_rows_at_random_is_not_padded() -> None:
    world = SmallWorld(rows=ROWS, dtype=torch.float64)
    task = ModuleTask(Mixed, classes=3, dtype=torch.float64, draws=True)
    settings = settings_for(catalog.fedavg(), world, task, batch=4)
    assert world.pad and not settings.pad
    loop, stacked = (play(settings, engine, 2)[2][-1] for engine in (Loop(), Stacked(threads=1)))
    assert float((loop - stacked).norm() / loop.norm()) <= 1e-9


def test_a_network_with_normal_layers_is_padded() -> None:
    world = SmallWorld(rows=ROWS)
    for layer in (nn.BatchNorm1d(5), nn.LayerNorm(5), nn.ReLU()):
        net = nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 3))
        settings = settings_for(catalog.fedavg(), world, ModuleTask(lambda n=net: n, classes=3))  # type: ignore[misc]
        assert settings.pad == world.pad


def test_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.models import registry

    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))

    @model("mixing_for_test")
    def mixing(shape: tuple[int, ...], classes: int) -> nn.Module:
        class Flat(Centred):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.head = nn.Linear(64, 5), nn.Linear(5, classes)

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x.flatten(1))

        return Flat()

    partition = {"name": "dirichlet", "alpha": 0.5}
    result = run(
        data="digits",
        model="mixing_for_test",
        world={"name": "static", "members": 6, "rounds": 1, "partition": partition},
        local={"batch": 8},
        engine="loop",
    )
    assert any("not padded" in note for note in result.notes)
    assert result.rounds[0]["notes"] == result.notes
