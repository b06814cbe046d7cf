"""Compiled steps were found again by less than they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor, nn

from shoal import run
from shoal.core.tree import Tree
from shoal.core.types import Outputs, Terms
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.slots import Part, Sent, Stepped
from shoal.methods.view import ServerView, View
from shoal.models import registry


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x.relu()


def trained(engine: str, activation: type[nn.Module]) -> Tensor:
    """A run of a registered network that somebody edits between two runs."""

    @registry.model("edited_for_test")
    def edited(shape: tuple[int, ...], classes: int) -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(64, 16), activation(), nn.Linear(16, classes)]
        return nn.Sequential(*layers)

    result = run(
        data="digits",
        model="edited_for_test",
        world={"name": "static", "members": 4, "rounds": 2, "partition": "iid"},
        local={"epochs": 1, "batch": 16, "lr": 0.3},
        engine=engine,
    )
    return torch.cat([tensor.flatten() for tensor in result.model.values()])


def test_an_edited_network_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))
    first = trained("stacked", nn.ReLU)
    second, expected = trained("stacked", Turned), trained("loop", Turned)
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.allclose(second, expected, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class PastModels(Part):
    """Pulls to what is made of all past global models, which are sent as ``[k, P]``."""

    how: str = "mean"

    def server_state(self, view: ServerView) -> Tree:
        return view.theta.unsqueeze(0)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        past: Any = view.sent
        ways = {
            "mean": lambda: past.mean(0),
            "last": lambda: past[-1],
            "length": lambda: past.sum(0) / past.shape[0],
            "each": lambda: sum(past[i] for i in range(past.shape[0])),
        }
        return Terms(extra=0.25 * (view.x - ways[self.how]()).square().sum())

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, torch.cat([view.state, theta.unsqueeze(0)]))


@pytest.mark.parametrize("how", ["mean", "last", "length", "each"])
@pytest.mark.parametrize("rows", [(8,), (12, 7, 20, 12, 5, 9)], ids=["even", "ragged"])
def test_a_payload_may_change_its_shape(how: str, rows: tuple[int, ...]) -> None:
    world = SmallWorld(dtype=torch.float64, rows=rows)
    task = small_task(world=world, dtype=torch.float64)
    settings = settings_for(Method("past", (PastModels(how=how),)), world, task)
    slow, fast = (play(settings, engine, 4)[2] for engine in (Loop(), Stacked(threads=1)))
    for a, b in zip(slow, fast, strict=True):
        assert float((a - b).norm() / a.norm()) <= 1e-11
