"""Local steps that lean on the last global direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent, Stepped
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Work
from shoal.view import GradFn, ServerView, View


@state("global_momentum.direction")
class Direction(NamedTuple):
    d: Tensor  # on the scale of a gradient


@dataclass(frozen=True, kw_only=True)
class GlobalMomentum(Part):
    """Local gradient ``alpha g(x) + (1 - alpha) Delta``; server ``Delta <- -mean(moved_i / r_i)``.

    Xu et al., "FedCM: Federated Learning with Client-level Momentum", 2021. ``Delta`` starts at
    zero, so the first round takes alpha-scaled steps. ``r_i`` is the sum of the rates that client i
    really used (``K eta`` for a constant rate), ``moved_i`` its displacement from where it started.

    Parameters: ``alpha`` (0.1; larger for VGG-11).

    Deviations: weight decay stays outside the mix, as in the public code. ``moved_i / r_i`` is
    carried as a payload of its own so that unequal clients are each divided by their own ``r_i``;
    a server that is told ``r_i`` could form it from the displacement alone.
    """

    alpha: float = 0.1

    derivable_upload: ClassVar[bool] = True

    @property
    def displacement_memory(self) -> bool:
        return True

    def server_state(self, view: ServerView) -> Tree:
        return Direction(torch.zeros_like(view.theta))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return self.alpha * inner(view.x) + (1.0 - self.alpha) * view.sent.d

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Direction((view.start - view.x) / work.rate_sum)

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, view.payload)
