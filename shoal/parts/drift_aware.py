"""A server optimiser whose step grows when everybody's update grows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Stepped
from shoal.tree import Tree
from shoal.view import ServerView


class Drift(NamedTuple):
    m: Tensor
    v: Tensor
    d: Tensor
    beta3: Tensor
    denominator: Tensor


@dataclass(frozen=True, kw_only=True)
class DriftAware(Part):
    """FLASH's server rule, for each coordinate.

    ``m <- b1 m + (1-b1) D``;  ``v' = b2 v + (1-b2) D^2``;  ``b3 = |v| / (|D^2 - v'| + |v|)``;
    ``d <- b3 d + (1-b3)(D^2 - v')``;  ``w <- w + eta_g m / (max(sqrt(v') - d, 0) + tau)``.
    Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning", 2023, Algorithm 1.

    Parameters: ``eta_g`` (0.05, the paper's for Synthetic), ``beta1`` (0.9), ``beta2`` (0.99),
    ``tau`` (1e-3), none of the last three stated in the paper; ``guard`` (on).

    Deviations: the printed ``sqrt(v) . d`` is read as a minus sign (its proofs need it). With
    ``guard`` the denominator is floored at ``tau``: where the proofs' assumption ``sqrt(v) >= d``
    fails, the raw rule walks backwards. ``0/0`` in ``b3`` is 1. Reported each round: means of
    ``d``, of ``|D^2 - v|`` and of the effective rate, medians of ``b3`` and ``|d| / (sqrt(v) +
    tau)``, and the share of coordinates with ``sqrt(v) < d``.
    """

    eta_g: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    guard: bool = True

    def server_state(self, view: ServerView) -> Tree:
        zero = torch.zeros_like(view.theta)
        return Drift(zero, zero, zero, zero, zero)

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        old = view.state
        square = delta * delta
        m = self.beta1 * old.m + (1.0 - self.beta1) * delta
        v = self.beta2 * old.v + (1.0 - self.beta2) * square
        beta3, d = self._disparity(old, square, v)
        gap = v.sqrt() - d
        denominator = (gap.clamp_min(0.0) if self.guard else gap) + self.tau
        theta = view.theta + (self.eta_g * factor) * m / denominator
        return Stepped(theta, Drift(m, v, d, beta3, denominator))

    def _disparity(self, old: Drift, square: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """``b3`` and ``d``: how far the squared update is above its running mean."""
        surprise = square - v
        scale = surprise.abs() + old.v.abs()
        beta3 = torch.where(
            scale > 0,
            old.v.abs() / scale.clamp_min(torch.finfo(scale.dtype).tiny),
            torch.ones_like(scale),
        )
        return beta3, beta3 * old.d + (1.0 - beta3) * surprise

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None
        state = view.state
        root = state.v.sqrt()
        surprise = view.uploads.delta.square() - state.v
        gap = root - state.d
        return {
            "gradient_disparity": state.d.mean(),
            "disparity": surprise.abs().mean(),
            "effective_rate": (self.eta_g / state.denominator).mean(),
            "beta3": state.beta3.median(),
            "relative_disparity": (state.d.abs() / (root + self.tau)).median(),
            "guarded_share": (gap < 0.0).to(gap.dtype).mean(),
        }
