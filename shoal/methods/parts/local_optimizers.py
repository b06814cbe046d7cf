"""SGD, Adam and AdamW on clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.methods.slots import Part
from shoal.methods.view import GradFn, View

# ---- local sgd -----------------------------------------------------------------------------------
# The default local optimiser: SGD with momentum, weight decay and clipping.


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
    def leaves_zero_gradients_alone(self) -> bool:
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


# ---- local adam ----------------------------------------------------------------------------------
# Adam and AdamW as local optimisers.


@state("local_adam.moments")
class AdamMoments(NamedTuple):
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
        return AdamMoments(torch.zeros((), dtype=view.x.dtype, device=view.x.device), zero, zero)

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
        return moved, AdamMoments(steps, first, second)


# ---- two optimizers ------------------------------------------------------------------------------
# Two Adam optimisers over one vector, one after the other.


@dataclass(frozen=True, kw_only=True)
class AlternatingAdam(Adam):
    """First everything but the tensors named ``last...`` moves, then those, at the new point.

    The step of a GAN: the critic, then the generator against the critic that has just moved. Two
    Adam optimisers with the same settings; the gradient function is called twice, so that what
    other parts add to it holds for both. Parameters: ``last`` (``generator.``), those of ``Adam``
    with ``beta1`` 0.5 and ``beta2`` 0.999, as for FedCIL (Qi et al. 2023).

    Deviations: none from two ``torch.optim.Adam`` that step in turn.
    """

    beta1: float = 0.5
    last: str = "generator."

    adaptive: ClassVar[bool] = True

    def step(self, view: View, gradient: GradFn, state: Tree) -> tuple[Tensor, Tree]:
        late = view.layout.mask((self.last,)).to(view.x.device)
        x, first = super().step(view, gradient, state)
        x = torch.where(late, view.x, x)
        y, second = super().step(replace(view, x=x), gradient, state)
        pairs = zip(first[1:], second[1:], strict=True)
        chosen = [torch.where(late, after, before) for before, after in pairs]
        return torch.where(late, y, x), AdamMoments(first.steps, *chosen)
