"""Learning rates that follow variability, epochs that stop early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.methods.parts.several_models import rounding
from shoal.methods.slots import Part, Sent, Stepped
from shoal.methods.view import ServerView, View

# ---- adaptive rate -------------------------------------------------------------------------------
# Client rates that follow how much the global model still moves about.


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

    def session_begins(self, view: ServerView) -> Tree:
        return self.server_state(view)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state.factor)

    def rate(self, view: View) -> Tensor | float:
        return view.sent

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
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


# ---- early stop ----------------------------------------------------------------------------------
# Clients that stop when another epoch no longer pays.


@state("early_stop.progress")
class EpochProgress(NamedTuple):
    before: Tensor
    now: Tensor


@dataclass(frozen=True, kw_only=True)
class EarlyStop(Part):
    """After epoch e, stop if ``l_{e-1} - l_e < gamma / e`` (strictly, by more than rounding), l the
    validation loss.

    Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning", 2023, Algorithm 1,
    lines 5 to 15. Parameters: ``gamma`` (0.04; None never stops), ``l0``: the first comparison is
    with the loss of the received model (``received``, default), or with infinity (``inf``, at least
    two epochs, as one public implementation does).

    Deviations: line 7 tests before epoch e whether ``l_{e-1} - l_e >= gamma / e``, with an ``l_e``
    that only this epoch would give. The test is made after the epoch instead, so at least one epoch
    runs, and ``l_0`` is the loss of the received model, which the sum in the proof of Theorem 4.1
    begins with; the listing sets none. The loss is the mean over validation samples (the paper
    sums; its thresholds only make sense for means). The weights after the last epoch that ran
    are returned, no roll-back.
    """

    gamma: float | None = 0.04
    l0: Literal["received", "inf"] = "received"

    @property
    def validation_data(self) -> bool:
        return self.gamma is not None

    @property
    def leaves_zero_gradients_alone(self) -> bool:
        return True

    def scratch(self, view: View) -> Tree:
        if self.gamma is None:
            return ()
        assert view.validation is not None
        loss = view.loss(view.received, view.validation)
        first = torch.full_like(loss, float("inf")) if self.l0 == "inf" else loss
        return EpochProgress(first, first)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        if self.gamma is None:
            return view.x, ()
        assert view.validation is not None
        return view.x, EpochProgress(view.scratch.now, view.loss(view.x, view.validation))

    def stop(self, view: View) -> Tensor:
        if self.gamma is None:
            return torch.zeros((), dtype=torch.bool, device=view.x.device)
        before, now = view.scratch
        # at equality, as with gamma 0 where nothing changes, rounding must not decide
        return before - now < self.gamma / (view.epoch + 1) - rounding(before)
