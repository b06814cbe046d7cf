"""Server steps on the mean displacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.methods.slots import Gaps, Part, Sent, Stepped
from shoal.methods.view import ServerView

# ---- server opt ----------------------------------------------------------------------------------
# Server optimisers that act on the mean displacement.


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
class ServerMoments(NamedTuple):
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
        return ServerMoments(torch.zeros_like(view.theta), torch.full_like(view.theta, first))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        m = self.beta1 * view.state.m + (1.0 - self.beta1) * delta
        v = second_moment(self.rule, view.state.v, delta * delta, self.beta2)
        step = (self.eta_g * factor) * m / (v.sqrt() + self.tau)
        return Stepped(view.theta + step, ServerMoments(m, v))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None
        v: Tensor = view.state.v
        return {
            "disparity": (view.uploads.delta.square() - v).abs().mean(),
            "effective_rate": (self.eta_g / (v.sqrt() + self.tau)).mean(),
        }


# ---- drift aware ---------------------------------------------------------------------------------
# A server optimiser whose step grows when everybody's update grows at once.


@state("flash.drift")
class DriftState(NamedTuple):
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
        return DriftState(zero, v, zero, zero, zero, zero.new_zeros(()) if self._sums else ())

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
        return Stepped(theta, DriftState(m, v, d, beta3, denominator, rounds))

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


# ---- lookahead -----------------------------------------------------------------------------------
# Clients start where the server's momentum is about to take the model.


@dataclass(frozen=True, kw_only=True)
class LookAhead(Part):
    """Sends ``w + lam m``; then ``m <- lam m + D`` and ``w <- w + m``, D from the model sent.

    Kim et al., "Communication-Efficient Federated Learning with Accelerated Client Gradient"
    (FedACG), 2024; the catalog's ``fedacg`` adds the pull towards the model received. With plain
    averaging the new ``w`` is the mean of the local models, and ``w`` is what is evaluated.

    Parameters: ``lam`` (0.85 for 20 clients, 0.5 for 100).

    Deviations: none. A constructed session start resets ``m``.
    """

    lam: float = 0.85

    def server_state(self, view: ServerView) -> Tree:
        return Velocity(torch.zeros_like(view.theta))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta + self.lam * view.state.v)

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        m = self.lam * view.state.v + factor * delta
        return Stepped(view.theta + m, Velocity(m))
