"""The default local optimiser: SGD with momentum, weight decay and clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part
from shoal.states import state
from shoal.tree import Tree
from shoal.view import GradFn, View


@state("local_sgd.momentum")
class Momentum(NamedTuple):
    buffer: Tensor


def clipped(gradient: Tensor, limit: float | None) -> Tensor:
    """``gradient`` scaled down to norm ``limit`` over all parameters."""
    if limit is None:
        return gradient
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (limit / (norm + 1e-6)).clamp(max=1.0)


@dataclass(frozen=True, kw_only=True)
class Sgd(Part):
    """``u <- momentum u + clip(g) + decay x``;  ``x <- x - rate u``, fresh every round.

    Parameters: ``momentum`` (0), ``weight_decay`` (0, added to the gradient after clipping),
    ``clip`` (none; the public FedDyn/FedDC/FedInit code uses 10).

    Deviations: none from ``torch.optim.SGD`` without dampening. The buffer starts at zero, which
    gives PyTorch's first buffer (the first gradient).
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    adaptive: ClassVar[bool] = False

    @property
    def stays_put(self) -> bool:
        return not self.weight_decay

    def step_state(self, view: View) -> Tree:
        return Momentum(torch.zeros_like(view.x)) if self.momentum else ()

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        g = clipped(gradient(view.x), self.clip)
        if self.weight_decay:
            g = g + self.weight_decay * view.x
        if not self.momentum:
            return view.x - view.rate * g, ()
        buffer = self.momentum * state.buffer + g
        return view.x - view.rate * buffer, Momentum(buffer)
