"""Server optimisers that act on the mean displacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Stepped
from shoal.states import state
from shoal.tree import Tree
from shoal.view import ServerView


@dataclass(frozen=True, kw_only=True)
class ServerSgd(Part):
    """``w <- w + eta_g D``; ``eta_g = 1`` is the mean of the local models (FedAvg).

    Deviations: none.
    """

    eta_g: float = 1.0

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        return Stepped(view.theta + (self.eta_g * factor) * delta, ())


@state("server_momentum.velocity")
class Velocity(NamedTuple):
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Part):
    """``v <- beta v + D``; ``w <- w + eta_g v`` (Nesterov: ``w + eta_g (D + beta v)``).

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution" (FedAvgM), 2019.
    Parameters: ``beta`` (0.9), ``eta_g`` (1), ``nesterov`` (off).

    Deviations: none; there is no ``(1 - beta)`` damping (one public code base has it).
    """

    beta: float = 0.9
    eta_g: float = 1.0
    nesterov: bool = False

    def server_state(self, view: ServerView) -> Tree:
        return Velocity(torch.zeros_like(view.theta))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        v = self.beta * view.state.v + delta
        ahead = delta + self.beta * v if self.nesterov else v
        return Stepped(view.theta + (self.eta_g * factor) * ahead, Velocity(v))


Rule = Literal["adam", "yogi", "adagrad"]


def second_moment(rule: Rule, v: Tensor, square: Tensor, beta2: float) -> Tensor:
    """The estimate of the squared displacement after one more of them; Adagrad's is a sum."""
    if rule == "adam":
        return beta2 * v + (1.0 - beta2) * square
    if rule == "yogi":
        return v - (1.0 - beta2) * square * torch.sign(v - square)
    return v + square


@state("server_adaptive.moments")
class Moments(NamedTuple):
    m: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class ServerAdaptive(Part):
    """Adam, Yogi or Adagrad on the displacement: ``w <- w + eta_g m / (sqrt(v) + tau)``.

    ``m <- b1 m + (1 - b1) D``, and for the second moment
    adam ``b2 v + (1-b2) D^2``; yogi ``v - (1-b2) D^2 sign(v - D^2)``; adagrad ``v + D^2``.
    Reddi et al., "Adaptive Federated Optimization", 2021.
    Parameters: ``eta_g`` (0.1), ``beta1`` (0.9; Adagrad 0), ``beta2`` (0.99), ``tau`` (1e-3),
    ``v_init`` (``tau^2``; some frameworks start at 0).

    Deviations: none; no bias correction, as in the paper. Reported each round: the means over
    coordinates of the effective rate ``eta_g / (sqrt(v) + tau)`` and of ``|D^2 - v|``.
    """

    rule: Rule = "adam"
    eta_g: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v_init: float | None = None

    def server_state(self, view: ServerView) -> Tree:
        first = self.tau**2 if self.v_init is None else self.v_init
        return Moments(torch.zeros_like(view.theta), torch.full_like(view.theta, first))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        m = self.beta1 * view.state.m + (1.0 - self.beta1) * delta
        v = second_moment(self.rule, view.state.v, delta * delta, self.beta2)
        step = (self.eta_g * factor) * m / (v.sqrt() + self.tau)
        return Stepped(view.theta + step, Moments(m, v))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None
        v: Tensor = view.state.v
        return {
            "disparity": (view.uploads.delta.square() - v).abs().mean(),
            "effective_rate": (self.eta_g / (v.sqrt() + self.tau)).mean(),
        }
