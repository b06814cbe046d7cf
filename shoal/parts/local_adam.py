"""Adam and AdamW as local optimisers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part
from shoal.parts.local_sgd import clipped
from shoal.states import state
from shoal.tree import Tree
from shoal.view import GradFn, View


@state("local_adam.moments")
class Moments(NamedTuple):
    steps: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, kw_only=True)
class Adam(Part):
    """Adam with bias correction (Kingma and Ba 2015); ``decoupled`` makes it AdamW.

    Parameters: ``beta1`` (0.9), ``beta2`` (0.999), ``epsilon`` (1e-8, outside the root),
    ``weight_decay`` (0), ``clip`` (none). State is fresh every round.

    Where a gradient is zero but for rounding, ``|g|`` of about 1e-8 in float32 is of epsilon's size
    and the step may be rounding's: engines then agree less than with SGD (``Part.float32_gaps``
    says how much, and ``shoal methods NAME``). In float64 such steps are 1e-9 of others.

    Deviations: none from ``torch.optim.Adam`` and ``AdamW`` at their defaults.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    decoupled: bool = False

    adaptive: ClassVar[bool] = True

    def step_state(self, view: View) -> Tree:
        zero = torch.zeros_like(view.x)
        return Moments(torch.zeros((), dtype=view.x.dtype, device=view.x.device), zero, zero)

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        x = view.x
        g = clipped(gradient(x), self.clip)
        if self.decoupled:
            x = x * (1.0 - view.rate * self.weight_decay)
        else:
            g = g + self.weight_decay * x
        steps = state.steps + 1.0
        first = self.beta1 * state.first + (1.0 - self.beta1) * g
        second = self.beta2 * state.second + (1.0 - self.beta2) * g * g
        root = (second / (1.0 - self.beta2**steps)).sqrt() + self.epsilon
        moved = x - view.rate * (first / (1.0 - self.beta1**steps)) / root
        return moved, Moments(steps, first, second)
