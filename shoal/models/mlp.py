"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from shoal.models.registry import Shape, model, positive


@model("mlp")
class MLP(nn.Module):
    """ReLU layers of the widths ``hidden`` on the flattened sample, then the head.

    The default is the "2NN" of McMahan et al., AISTATS 2017: two layers of 200 (199,210
    parameters on MNIST). One width may be given as a number.
    """

    def __init__(self, shape: Shape, classes: int, *, hidden: int | Sequence[int] = (200, 200)):
        super().__init__()
        given = (hidden,) if isinstance(hidden, int) else tuple(hidden)
        widths = (prod(shape), *positive("mlp", "hidden", given))
        self.body = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.flatten(1)
        for layer in self.body:
            features = torch.relu(layer(features))
        return self.head(features), features
