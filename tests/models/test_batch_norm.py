"""Running statistics: they move, they are averaged, and they come back out."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import grad

from shoal.api import play
from shoal.config.build import build as build_run
from shoal.config.schema import from_mapping
from shoal.core.errors import UserError
from shoal.core.task import ModuleTask, mean_loss
from shoal.core.types import Batch, Pool
from shoal.data import dataset
from shoal.data.sources import Dataset, load, source
from shoal.models import build

NET = partial(build, "resnet18", (3, 8, 8), 3, width=4, norm="batch")


def batch(seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 3, 8, 8, generator=draw, dtype=torch.float64) + 2.0
    return Batch(x, torch.randint(3, (6,), generator=draw))


def test_a_step_is_that_of_the_plain_module() -> None:
    task, given = ModuleTask(NET, classes=3, dtype=torch.float64), batch()
    start = task.initial(0)

    def loss(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = task.forward(theta, given, start.stats, True)
        return mean_loss(task, outputs, given), outputs.stats

    slope, stats = grad(loss, has_aux=True)(start.theta)
    plain = NET().double()
    plain.load_state_dict(task.export(start))
    nn.functional.cross_entropy(plain(given.x)[0], given.y).backward()
    grads = {k: p.grad for k, p in plain.named_parameters() if p.grad is not None}
    assert torch.allclose(slope, task.layout.flatten(grads), rtol=1e-8, atol=1e-10)
    moved = task.stats_layout.flatten(dict(plain.named_buffers()))
    assert torch.allclose(stats, moved, rtol=1e-12)
    assert not torch.allclose(stats, start.stats) and task.stats_layout.size > 0


def test_without_training_statistics_stay_and_are_used() -> None:
    task, given = ModuleTask(NET, classes=3, dtype=torch.float64), batch()
    start = task.initial(0)
    outputs = task.forward(start.theta, given, start.stats, False)
    assert torch.equal(outputs.stats, start.stats)
    other = task.forward(start.theta, given, start.stats * 2 + 0.1, False)
    assert not torch.allclose(outputs.logits, other.logits)


def test_an_export_has_every_name_of_the_plain_module() -> None:
    task = ModuleTask(NET, classes=3)
    exported = task.export(task.initial(1))
    assert list(exported) == list(NET().state_dict())
    assert any(name.endswith("num_batches_tracked") for name in exported)


def test_a_layer_without_momentum_is_refused() -> None:
    with pytest.raises(UserError, match="layer '1' .*momentum None.*such as 0.1"):
        ModuleTask(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))


def test_the_loop_engine_trains_and_averages_statistics() -> None:
    world = {"name": "static", "members": 3, "rounds": 1, "partition": "iid"}
    settings = {"data": {"name": "digits", "flat": False}, "engine": "loop", "world": world}
    network = {"name": "resnet18", "width": 16, "norm": "batch"}
    local = {"batch": None, "lr": 0.1, "epochs": 1, "validation": 0.0}
    plan = build_run(from_mapping({**settings, "model": network, "local": local}))
    end = play(plan).model
    plain = build("resnet18", (1, 8, 8), 10, width=16, norm="batch")
    task = ModuleTask(lambda: plain)
    plain.load_state_dict(task.export(plan.initial))
    # One step of everybody on all of their rows: members' means of what the first convolution
    # says, weighted by their sizes, are its mean over all rows.
    seen = plain.get_submodule("stem")(load("digits", flat=False).train.x)
    assert torch.allclose(end["norm.running_mean"], 0.1 * seen.mean((0, 2, 3)), atol=1e-6)
    plain = build("resnet18", (1, 8, 8), 10, width=16, norm="batch")
    plain.load_state_dict(end)
    assert torch.isfinite(plain.eval()(torch.randn(2, 1, 8, 8))[0]).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fasttext", {}),
        ("char_lstm", {"hidden": 16}),
        ("word_lstm", {"hidden": 16, "width": 8}),
        ("transformer", {"width": 16}),
    ],
)
def test_texts_train_on_the_loop_engine(
    name: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_SOURCES", dict(dataset._SOURCES))

    @source("tokens")
    def tokens() -> Dataset:
        x = torch.randint(1, 12, (60, 5), generator=torch.Generator().manual_seed(0))
        pool = Pool(x, x[:, -1] % 3)
        return Dataset("tokens", pool, pool, 3, (5,), vocabulary=12)

    config = {
        "data": "tokens",
        "model": {"name": name, "vocabulary": 12, **options},
        "world": {"name": "static", "members": 2, "rounds": 8, "partition": "iid"},
        "engine": "loop",
        "local": {"batch": 10, "lr": 0.01, "optimizer": "adam", "epochs": 2},
    }
    result = play(build_run(from_mapping(config)))
    first, last = (r["accuracy"] for r in (result.rounds[0], result.rounds[-1]))
    assert last > max(0.5, first)
