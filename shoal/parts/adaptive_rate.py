"""Client rates that follow how much the global model still moves about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent, Stepped
from shoal.states import state
from shoal.tree import Tree
from shoal.view import ServerView, View


@state("adaptive_rate.variability")
class Variability(NamedTuple):
    """Running mean ``mu`` of the model, variance ``s``, ratio ``g``, aggregations ``t``."""

    mu: Tensor
    s: Tensor
    g: Tensor
    t: Tensor
    factor: Tensor  # of the next round's client rate, at most 1


@dataclass(frozen=True, kw_only=True)
class VariabilityRate(Part):
    """The clients' rate is ``min(eta0, eta0 g_t / t)``, ``g`` a ratio of model variances.

    After aggregation t: ``mu <- b1 mu + (1-b1) w``; ``s <- b2 s + (1-b2) mean_j (w_j - mu_j)^2``
    with the bias-corrected mean of before; ``g <- b3 g + (1-b3) s_t / s_{t-1}``, all
    bias-corrected, the ratio 1 where it has no denominator. Canonaco et al., "Adaptive Federated
    Learning in Presence of Concept Drift", 2021.

    Parameters: ``beta1``, ``beta2``, ``beta3`` (0.5 each, from public code), ``on`` (none: shifts
    at which everything, and with it ``t``, starts again). ``eta0`` is the run's own client rate.

    Deviations: read from a re-implementation, not from the authors' code. Where the run has a rate
    schedule, ``eta0`` follows it. The factor ``1/t`` shrinks the rate for ever unless a shift that
    the part hears restarts it.
    """

    beta1: float = 0.5
    beta2: float = 0.5
    beta3: float = 0.5

    def server_state(self, view: ServerView) -> Tree:
        zero = view.theta.new_zeros(())
        return Variability(torch.zeros_like(view.theta), zero, zero, zero, torch.ones_like(zero))

    def begin(self, view: ServerView) -> Tree:
        return self.server_state(view)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state.factor)

    def rate(self, view: View) -> Tensor | float:
        return view.sent

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        old = view.state
        mean, before = _corrected(old.mu, self.beta1, old.t), _corrected(old.s, self.beta2, old.t)
        t = old.t + 1.0
        mu = self.beta1 * old.mu + (1.0 - self.beta1) * theta
        s = self.beta2 * old.s + (1.0 - self.beta2) * (theta - mean).square().mean()
        now = _corrected(s, self.beta2, t)
        ratio = now / before if float(before) > 0.0 else torch.ones_like(now)
        g = self.beta3 * old.g + (1.0 - self.beta3) * ratio
        factor = (_corrected(g, self.beta3, t) / t).clamp(max=1.0)
        return Stepped(theta, Variability(mu, s, g, t, factor))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"next_client_rate": view.rate * view.state.factor}


def _corrected(value: Tensor, beta: float, t: Tensor) -> Tensor:
    """``value / (1 - beta^t)``; 0 before the first aggregation."""
    return value / (1.0 - beta**t) if float(t) > 0.0 else torch.zeros_like(value)
