"""Local gradients that are corrected: control variates, global momentum, sharpness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Kind, Reduction, Work
from shoal.methods.slots import Part, Sent, Stepped, question, sends
from shoal.methods.view import GradFn, ServerView, View

# ---- control variate -----------------------------------------------------------------------------
# Control variates that remove client drift.


@state("scaffold.variate")
class Variate(NamedTuple):
    c: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlVariate(Part):
    """Local gradient ``g(x) - c_i + c``; server ``c <- c + (1/N) sum (c_i+ - c_i)``.

    Karimireddy et al., "SCAFFOLD", 2020. ``option`` 1: ``c_i+`` is the full local gradient at the
    received model (one more pass over the data); 2 (default): ``c_i+ = c_i - c + (start - x)/(K
    eta)`` with the steps and rates that were really used.

    Deviations: N is the number of members present, and when members change ``c`` becomes the mean
    of the variates of those who are here; the paper's clients are always the same. The displacement
    is taken from where the client started (the received model, unless a relaxed start moved it), as
    in the public code that combines the two. A constructed session start resets ``c`` and every
    ``c_i``, so that ``c = mean c_i`` stays true.
    """

    option: Literal[1, 2] = 2
    on: tuple[Kind, ...] = ("members",)

    reduction: ClassVar[Reduction] = Reduction.SUM
    resets: ClassVar[Literal["nothing", "server", "both"]] = "both"

    @property
    def needs_plain_sgd(self) -> bool:
        return self.option == 2

    @property
    def train_data(self) -> bool:
        return self.option == 1

    def server_state(self, view: ServerView) -> Tree:
        return Variate(torch.zeros_like(view.theta))

    def memory(self, view: View) -> Tree:
        return Variate(torch.zeros_like(view.received))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return inner(view.x) + (view.sent.c - view.memory.c)

    def client_end(self, view: View, work: Work) -> Tree:
        if self.option == 1:
            return Variate(view.full_grad(view.received))
        return Variate(view.memory.c - view.sent.c + (view.start - view.x) / work.rate_sum)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Variate(view.kept.c - view.memory.c)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, Variate(view.state.c + view.payload.c / len(view.members)))

    def session_begins(self, view: ServerView) -> Tree:
        if view.shift is None or "members" not in view.shift.kinds:
            return view.state
        known = view.clients.remembered(view.members)
        total = torch.zeros_like(view.theta)
        for answer in view.clients.ask(self.own_variate, (), known):
            total = total + answer.c
        return Variate(total / len(view.members))

    @question
    @sends("nothing")
    def own_variate(self, view: View, payload: Tree) -> Tree:
        """The client's variate, asked when members change."""
        return view.memory


# ---- momentum ------------------------------------------------------------------------------------
# Local steps that lean on the last global direction.


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

    upload_costs_nothing: ClassVar[bool] = True

    @property
    def needs_plain_sgd(self) -> bool:
        return True

    def server_state(self, view: ServerView) -> Tree:
        return Direction(torch.zeros_like(view.theta))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return self.alpha * inner(view.x) + (1.0 - self.alpha) * view.sent.d

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Direction((view.start - view.x) / work.rate_sum)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, view.payload)


# ---- sharpness -----------------------------------------------------------------------------------
# Gradients taken where the loss is worst nearby.


def ascent(gradient: Tensor, rho: float, eps: float) -> Tensor:
    """``rho g / (|g| + eps)``, the norm over all parameters; zero where the gradient is zero.

    >>> [round(v, 9) for v in ascent(torch.tensor([3.0, 4.0]).double(), 0.1, 0.0).tolist()]
    [0.06, 0.08]
    >>> ascent(torch.zeros(2), 0.1, 0.0)
    tensor([0., 0.])
    """
    length = torch.linalg.vector_norm(gradient) + eps
    return rho * gradient / length.clamp_min(torch.finfo(gradient.dtype).tiny)


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(Part):
    """Steps along ``g(x + e)`` with ``e = rho g(x) / (|g(x)| + eps)``, same batch twice.

    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization" (FedSAM), 2022.
    Regularisers of parts are inside both gradients; weight decay and momentum act on the second
    only, and running statistics are those of the first pass.

    Parameters: ``rho`` (0.1; 0.01 at low participation), ``eps`` (1e-7).

    Deviations: none.

    >>> SharpnessAware(rho=0.01).describe()
    'SharpnessAware(rho=0.01)'
    """

    rho: float = 0.1
    eps: float = 1e-7

    @property
    def leaves_zero_gradients_alone(self) -> bool:
        return True  # no gradient, no ascent

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return inner(view.x + ascent(inner(view.x), self.rho, self.eps))
