"""Law: every target and loss is trained as torch would train it, on every engine alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn
from torch.nn import functional as F

from shoal import catalog
from shoal.config.schema import from_mapping
from shoal.config.subject import task_of
from shoal.core.task import ModuleTask
from shoal.core.types import Job, Pool, Target
from shoal.data.dataset import Dataset
from shoal.engines.loop import Loop, batch_rows, epoch_order
from shoal.engines.stacked.engine import Stacked
from shoal.methods.slots import FLOAT64_GAP
from shoal.rounds.cohort import choose_cohort
from shoal.rounds.orders import make_order
from shoal.rounds.state import Federation, Round

WEIGHTS = [1.0, 2.0, 0.5]
TEXT = {"name": "transformer", "width": 4, "heads": 2, "hidden": 6, "layers": 1, "vocabulary": 7}


def far(outputs: Tensor, targets: Tensor, power: float = 1.5) -> Tensor:
    """A user's loss, one number per row."""
    return (outputs - targets).abs().pow(power)


def mean_far(outputs: Tensor, targets: Tensor) -> Tensor:
    """A user's loss as torch's are: the mean over rows."""
    return far(outputs, targets).mean()


def weighed(logits: Tensor, y: Tensor) -> Tensor:
    """torch divides by the sum of weights; here a mean counts rows."""
    return F.cross_entropy(logits, y, torch.tensor(WEIGHTS).to(logits), reduction="none").mean()


def smooth(logits: Tensor, y: Tensor, classes: int = 1) -> Tensor:
    return F.cross_entropy(logits.movedim(classes, 1), y, ignore_index=-100, label_smoothing=0.1)


@dataclass(frozen=True)
class Case:
    """``loss`` as a config says it, and ``torchs`` as a batch's mean in plain torch."""

    target: Target
    loss: dict[str, Any] | str
    torchs: Callable[[Tensor, Tensor], Tensor]
    model: dict[str, Any] = field(default_factory=lambda: {"name": "mlp", "hidden": 5})
    ignored: bool = False
    columns: int = 0


TOKENS = {"model": TEXT, "target": "token"}
UNET = {"model": {"name": "small_unet", "width": 2}, "target": "dense"}
CASES = {
    "class": Case("class", {}, F.cross_entropy),
    "class, weights": Case("class", {"class_weights": WEIGHTS}, weighed),
    "class, smoothed": Case("class", {"label_smoothing": 0.1, "ignore_index": -100}, smooth,
                            ignored=True),
    "labels": Case("multi_label", "bce", F.binary_cross_entropy_with_logits),
    "labels, weights": Case(
        "multi_label", {"class_weights": WEIGHTS},
        lambda o, y: F.binary_cross_entropy_with_logits(
            o, y, pos_weight=torch.tensor(WEIGHTS).to(o))),
    "number": Case("number", {}, lambda o, y: F.mse_loss(o[:, 0], y)),
    "numbers": Case("number", "mse", F.mse_loss, columns=2),
    "numbers, mae": Case("number", "mae", F.l1_loss, columns=2),
    "number, huber": Case("number", {"name": "huber", "delta": 0.3},
                          lambda o, y: F.huber_loss(o[:, 0], y, delta=0.3)),
    "own": Case("number", {"name": "laws.test_targets:far", "power": 1.7},
                lambda o, y: far(o[:, 0], y, 1.7).mean()),
    "own, a mean": Case("number", "laws.test_targets:mean_far", lambda o, y: mean_far(o[:, 0], y)),
    "dense": Case(loss={}, torchs=F.cross_entropy, **UNET),
    "dense, ignored": Case(loss={"ignore_index": -100, "label_smoothing": 0.1}, torchs=smooth,
                           ignored=True, **UNET),
    "token": Case(loss={}, torchs=lambda o, y: F.cross_entropy(o.movedim(-1, 1), y), **TOKENS),
    "token, ignored": Case(loss={"ignore_index": -100, "label_smoothing": 0.1},
                           torchs=lambda o, y: smooth(o, y, -1), ignored=True, **TOKENS),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", CASES)


def drawn(case: Case, rows: int) -> Pool:
    draw = torch.Generator().manual_seed(5)
    shape = {"dense": (1, 4, 4), "token": (5,)}.get(case.target, (6,))
    x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64)
    if case.target == "token":
        x = torch.randint(1, 7, (rows, 5), generator=draw)
    places = {"dense": (4, 4), "token": (5,), "multi_label": (3,)}.get(case.target, ())
    y = torch.randint(2 if case.target == "multi_label" else 3, (rows, *places), generator=draw)
    if case.ignored:
        y = torch.where(torch.rand(y.shape, generator=draw) < 0.3, -100, y)
    if case.target == "number":
        y = torch.randn(rows, *([case.columns] if case.columns else []), generator=draw)
    return Pool(x, y.double() if case.target in ("multi_label", "number") else y)


def subject(case: Case) -> tuple[SmallWorld, ModuleTask]:
    world = SmallWorld(dtype=torch.float64)
    pool = drawn(case, len(world.pool.y))  # type: ignore[attr-defined]
    object.__setattr__(world, "pool", pool)
    classes = None if case.target == "number" else 3
    data = Dataset("drawn", pool, pool, classes, tuple(pool.x.shape[1:]), target=case.target)
    config = from_mapping({"loss": case.loss, "model": case.model})
    return world, replace(task_of(config, data), dtype=torch.float64)


@EVERY
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_stacked_equals_loop(name: str, method: str) -> None:
    world, task = subject(CASES[name])
    settings = settings_for(catalog.build([method]), world, task, participation=4)
    _, _, slow = play(settings, Loop(), 2)
    _, _, fast = play(settings, Stacked(), 2)
    for a, b in zip(slow, fast, strict=True):
        assert float((a - b).norm() / a.norm()) < FLOAT64_GAP


@EVERY
def test_fedavg_is_plain_torchs(name: str) -> None:
    case, rounds, rate = CASES[name], 2, 0.1
    world, task = subject(case)
    settings = settings_for(catalog.fedavg(), world, task, participation=3, epochs=2, lr=rate)
    _, _, models = play(settings, Loop(), rounds)

    net, initial = task.build().double(), task.initial(settings.seed)
    theta = task.export(initial)
    federation = Federation.fresh(settings, initial, world.at(0), rate)
    for r in range(rounds):
        cohort = choose_cohort(settings, world.at(r))
        order = make_order(Round(federation, settings, world.at(r)), 0, [Job(c) for c in cohort])
        sums = {k: torch.zeros_like(v) for k, v in theta.items()}
        total = sum(len(world.train(c, r)) for c in cohort)
        for client in cohort:
            data = world.train(client, r)
            net.load_state_dict(theta)
            for epoch in range(2):
                places = epoch_order(order, [client], [len(data)], epoch)[0, : len(data)]
                for batch in places.split(batch_rows(order, len(data))):
                    step(net, data.pool.x[data.rows[batch]], data.labels[batch], case, rate)
            for k, v in net.state_dict().items():
                sums[k] += v * (len(data) / total)
        theta = sums
        federation.round = r + 1
    assert torch.allclose(task.pack(theta).theta, models[-1], rtol=0, atol=1e-12)


def step(net: nn.Module, x: Tensor, y: Tensor, case: Case, rate: float) -> None:
    found = net(x)
    net.zero_grad()
    case.torchs(found[0] if isinstance(found, tuple) else found, y).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= rate * parameter.grad
