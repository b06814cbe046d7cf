"""A server optimiser whose step grows when everybody's update grows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Gaps, Part, Stepped
from shoal.parts.server_opt import Rule, second_moment
from shoal.states import state
from shoal.tree import Tree
from shoal.view import ServerView


@state("flash.drift")
class Drift(NamedTuple):
    m: Tensor
    v: Tensor
    d: Tensor
    beta3: Tensor
    denominator: Tensor
    rounds: Tree = ()  # how many displacements Adagrad's sum has; () for a running mean


@dataclass(frozen=True, kw_only=True)
class DriftAware(Part):
    """FLASH's server rule, for each coordinate, around a base optimiser's second moment ``v``.

    ``m <- b1 m + (1-b1) D``;  ``v'`` by the base: adam ``b2 v + (1-b2) D^2``, yogi
    ``v - (1-b2) D^2 sign(v - D^2)``, adagrad ``v + D^2``;  ``b3 = |u| / (|D^2 - u'| + |u|)``;
    ``d <- b3 d + (1-b3)(D^2 - u')``;  ``w <- w + eta_g m / (max(sqrt(v') - d, 0) + tau)``, where
    ``u, u'`` is the base's estimate of the mean of ``D^2`` before and after the round: ``v, v'``,
    and for adagrad, whose ``v`` is a sum, ``v/(t-1), v'/t`` in its round t (0 before the first).
    Panchal et al., "Flash: Concept Drift Adaptation in Federated Learning", 2023, Algorithm 1.

    Parameters: ``eta_g`` (0.05, the paper's for Synthetic), ``beta1`` (0.9; adagrad 0), ``beta2``
    (0.99), ``tau`` (1e-3), none of the last three stated in the paper; ``guard`` (on); ``base``
    (``adam``), ``v_init`` (0, as FLASH; FedYogi's own start is ``tau^2``), ``disparity``
    (``moment``; ``v`` takes adagrad's sum for ``u``, to the letter).

    Deviations: the printed ``sqrt(v) . d`` is read as a minus sign (its proofs need it). With
    ``guard`` the denominator is floored at ``tau``: where the proofs' assumption ``sqrt(v) >= d``
    fails, the raw rule walks backwards. ``0/0`` in ``b3`` is 1. The norms of line 19 are taken per
    coordinate. The listing prints Adam's second moment and its text says "any of FedAdam, FedYogi
    and the like": ``d`` then stands in that base's denominator and nothing else of it changes.
    Adagrad is not considered there; with its sum for ``u`` (``disparity: v``), ``b3`` is 1/2 for
    ever, ``d`` is negative and no drift is seen. Reported each round: means of
    ``d``, of ``|D^2 - v|`` and of the effective rate, medians of ``b3`` and ``|d| / (sqrt(v) +
    tau)``, and the share of coordinates with ``sqrt(v) < d``.
    """

    eta_g: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    guard: bool = True
    base: Rule = "adam"
    v_init: float = 0.0
    disparity: Literal["moment", "v"] = "moment"

    # a coordinate that hardly moved before has a small denominator: it repeats what rounding began
    float32_gaps: ClassVar[Gaps] = Gaps(adaptive=1e-3)

    @property
    def _sums(self) -> bool:
        """Whether ``v`` is a sum that the disparity wants as a mean."""
        return self.base == "adagrad" and self.disparity == "moment"

    def server_state(self, view: ServerView) -> Tree:
        zero = torch.zeros_like(view.theta)
        v = torch.full_like(zero, self.v_init) if self.v_init else zero
        return Drift(zero, v, zero, zero, zero, zero.new_zeros(()) if self._sums else ())

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        old = view.state
        square = delta * delta
        m = self.beta1 * old.m + (1.0 - self.beta1) * delta
        v = second_moment(self.base, old.v, square, self.beta2)
        before, after, rounds = old.v, v, old.rounds
        if self._sums:
            rounds = old.rounds + 1.0
            first = old.rounds == 0
            before = torch.where(first, torch.zeros_like(v), old.v / old.rounds.clamp_min(1.0))
            after = v / rounds
        beta3, d = self._disparity(old.d, square, before, after)
        gap = v.sqrt() - d
        denominator = (gap.clamp_min(0.0) if self.guard else gap) + self.tau
        theta = view.theta + (self.eta_g * factor) * m / denominator
        return Stepped(theta, Drift(m, v, d, beta3, denominator, rounds))

    def _disparity(
        self, d: Tensor, square: Tensor, before: Tensor, after: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``b3`` and ``d``: how far the squared update is above its running mean."""
        surprise = square - after
        scale = surprise.abs() + before.abs()
        beta3 = torch.where(
            scale > 0,
            before.abs() / scale.clamp_min(torch.finfo(scale.dtype).tiny),
            torch.ones_like(scale),
        )
        return beta3, beta3 * d + (1.0 - beta3) * surprise

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None
        state = view.state
        root = state.v.sqrt()
        mean = state.v / state.rounds if self._sums else state.v
        surprise = view.uploads.delta.square() - mean
        gap = root - state.d
        return {
            "gradient_disparity": state.d.mean(),
            "disparity": surprise.abs().mean(),
            "effective_rate": (self.eta_g / state.denominator).mean(),
            "beta3": state.beta3.median(),
            "relative_disparity": (state.d.abs() / (root + self.tau)).median(),
            "guarded_share": (gap < 0.0).to(gap.dtype).mean(),
        }
