"""A network's first weights were drawn from torch's global generator, which other threads reset."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from torch import nn

from shoal import models, run
from shoal.core.task import ModuleTask

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.build("mlp", (6,), 3, hidden=(7,)),
    "convolutions": lambda: models.build("resnet18", (3, 8, 8), 3, width=8, groups=4),
    "transformer": lambda: models.build(
        "transformer", (5,), 3, vocabulary=7, width=4, heads=2, hidden=6
    ),
    "recurrent": lambda: models.build("char_lstm", (5,), 3, vocabulary=7, width=3, hidden=4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_first_weights_leave_the_global_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    task = ModuleTask(NETWORKS[name], classes=3)
    model = task.initial(5)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):  # and are what the seed has always given
        torch.manual_seed(5)
        plain = NETWORKS[name]()
    assert torch.equal(model.theta, task.pack(plain.state_dict()).theta)


def test_another_thread_cannot_come_between() -> None:
    """A constructor that waits while another thread seeds the global generator."""
    inside, go_on = Event(), Event()

    def build() -> nn.Module:
        first = nn.Linear(3, 3)
        inside.set()
        go_on.wait(5)
        return nn.Sequential(first, nn.Linear(3, 2))

    go_on.set()
    task = ModuleTask(build, classes=2)
    alone = task.initial(1).theta
    inside.clear()
    go_on.clear()
    found: list[torch.Tensor] = []
    thread = Thread(target=lambda: found.append(task.initial(1).theta))
    thread.start()
    inside.wait(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        go_on.set()
        thread.join()
    assert torch.equal(found[0], alone)


def test_a_run_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    settings = {"name": "static", "members": 4, "rounds": 2}
    for engine in ("loop", "stacked"):
        run(world=settings, method="fedagg", engine=engine, local={"epochs": 2})
    assert torch.equal(torch.get_rng_state(), before)
