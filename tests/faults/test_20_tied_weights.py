"""Tied weights are exported as they predicted, under every name they have."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import shoal
from shoal.data.sources import load
from shoal.models.registry import model


class Tied(nn.Module):
    """Two layers with one weight, and a scale that stands in two places."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, inputs), nn.Linear(inputs, inputs)
        self.second.weight = self.first.weight
        self.head = nn.Linear(inputs, classes)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("again", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale * 0.5 + 0.25
            self.again = self.scale
        x = torch.relu(self.first(x.flatten(1))) * self.again
        return self.head(torch.relu(self.second(x)))


@model("tied_for_faults")
def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tied(prod(shape), classes)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_what_is_loaded_predicts_what_was_recorded(engine: str, tmp_path: Path) -> None:
    result = shoal.run(
        data="digits",
        model="tied_for_faults",
        world={"name": "static", "members": 4, "rounds": 8, "partition": "iid"},
        local={"epochs": 3, "batch": 16, "lr": 0.2},
        engine=engine,
        evaluate={"rows": "test_all"},
    )
    net, data = Tied(64, 10), load("digits")
    with torch.no_grad():
        untrained = net.first.weight.clone()
    result.save(tmp_path / "run")
    for tensors in (result.model, load_file(tmp_path / "run" / "model.safetensors")):
        assert set(tensors) == set(net.state_dict())
        assert torch.equal(tensors["first.weight"], tensors["second.weight"])
        assert torch.equal(tensors["scale"], tensors["again"])
        net.load_state_dict(tensors)
        assert not torch.equal(net.first.weight, untrained)
        with torch.no_grad():
            right = net.eval()(data.test.x).argmax(1) == data.test.y
        assert float(right.double().mean()) == pytest.approx(result.rounds[-1]["accuracy"])
