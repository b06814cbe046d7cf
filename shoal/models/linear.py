"""Multinomial logistic regression."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from shoal.models.registry import Shape, model


@model("linear")
class Linear(nn.Module):
    """``logits = W x + b`` of the flattened sample; the features are the logits."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(prod(shape), classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(x.flatten(1))
        return logits, logits
