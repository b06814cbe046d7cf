"""Two Adam optimisers over one vector, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal.parts.local_adam import Adam, Moments
from shoal.tree import Tree
from shoal.view import GradFn, View


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
        return torch.where(late, y, x), Moments(first.steps, *chosen)
