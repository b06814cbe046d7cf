"""Client rates from a control problem around the mean trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent, question
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import ServerView, View


def control_rates(phi1: Tensor, phi2: Tensor, w: Tensor, alpha: float) -> Tensor:
    """Rates that minimise ``sum alpha eta_l^2 + (1-alpha) |w_l - phi2_l|^2`` (FedAgg eq. 15).

    ``phi1`` is ``[L, P]`` (mean gradients of epochs 0..L-1), ``phi2`` is ``[L, P]`` (mean models
    after epochs 1..L); the model dynamics are ``w_{l+1} = w_l - eta_l phi1_l``.

    >>> phi1 = torch.tensor([[0.5, -0.2]], dtype=torch.float64)
    >>> phi2 = torch.tensor([[0.9, 1.0]], dtype=torch.float64)
    >>> rates = control_rates(phi1, phi2, torch.ones(2, dtype=torch.float64), 0.1)
    >>> [round(rate, 9) for rate in rates.tolist()]
    [0.12465374]
    """
    epochs = phi1.shape[0]
    c = (1.0 - alpha) / alpha
    index = torch.arange(epochs, device=phi1.device)
    left = (epochs - torch.maximum(index[:, None], index[None, :])).to(phi1.dtype)
    matrix = torch.eye(epochs, dtype=phi1.dtype, device=phi1.device) + c * left * (phi1 @ phi1.T)
    ahead = phi2.flip(0).cumsum(0).flip(0)  # row p: sum of phi2_{p+1..L}
    remaining = (epochs - index).to(phi1.dtype)
    right = c * (remaining * (phi1 @ w) - (phi1 * ahead).sum(-1))
    return torch.linalg.solve(matrix, right)


class Trajectory(NamedTuple):
    phi1: Tensor  # [L, P]
    phi2: Tensor  # [L + 1, P], row 0 is the start


class Chosen(NamedTuple):
    """``raw`` and ``used`` have one entry an epoch; ``now`` is this epoch's rate."""

    raw: Tensor
    used: Tensor
    now: Tensor


@dataclass(frozen=True, kw_only=True)
class AggregatedGradientRate(Part):
    """One rate an epoch that keeps clients near the participants' mean trajectory.

    "FedAgg: Adaptive Federated Learning with Aggregated Gradients", 2023, eq. (15), solved as a
    linear system. Every round the participants first walk ``L`` epochs at the base rate; the means
    of their gradients (``phi1``) and models (``phi2``) give the rates, clipped to
    ``[eta_min, eta_max]``.

    Parameters: ``alpha`` (0.1), ``feedback`` (``open loop``: solved once at the received model, all
    clients share the rates; ``closed loop``: again at every epoch with the client's own weights),
    ``eta_min`` (a tenth of the base rate), ``eta_max`` (0.999), ``epochs`` (L, the local epochs;
    must equal ``local.epochs``).

    Deviations: the literal fixed point of the paper's pre-training loop is the zero rate, so one
    probe pass a round over the participants is used instead, with the full local gradient at the
    start of each epoch as ``phi1``. The printed closed form for two epochs has typos; the linear
    system does not. Rates leave (0, 1) without clipping; the clipped share is reported.
    """

    alpha: float = 0.1
    feedback: Literal["open loop", "closed loop"] = "open loop"
    eta_min: float | None = None
    eta_max: float = 0.999
    epochs: int = 3

    sets_rate: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def server_state(self, view: ServerView) -> Tree:
        size = view.theta.numel()
        return Trajectory(
            view.theta.new_zeros(self.epochs, size), view.theta.new_zeros(self.epochs + 1, size)
        )

    def ask(self, view: ServerView) -> Tree:
        answers = view.reach.ask(self.walk, (), view.cohort)
        phi1, phi2 = answers[0]
        for answer in answers[1:]:
            phi1, phi2 = phi1 + answer.phi1, phi2 + answer.phi2
        return Trajectory(phi1 / len(answers), phi2 / len(answers))

    @question
    def walk(self, view: View, payload: Tree) -> Tree:
        """The client's own gradients and models over L epochs at the base rate."""
        x, gradients, points = view.received, [], [view.received]
        rate = float(view.base_rate)
        for epoch in range(self.epochs):
            gradients.append(view.full_grad(x))
            x = view.descend(x, rate, epoch)
            points.append(x)
        return Trajectory(torch.stack(gradients), torch.stack(points))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def scratch(self, view: View) -> Tree:
        phi1, phi2 = view.sent
        raw = control_rates(phi1, phi2[1:], view.received, self.alpha)
        used = self._clip(raw, view.base_rate)
        if self.feedback == "open loop":
            return Chosen(raw, used, used[0])
        shown = torch.zeros_like(raw)
        first = torch.arange(self.epochs) == 0
        return Chosen(torch.where(first, raw, shown), torch.where(first, used, shown), used[0])

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        following = view.epoch + 1
        if following >= self.epochs:
            return view.x, view.scratch
        if self.feedback == "open loop":
            return view.x, view.scratch._replace(now=view.scratch.used[following])
        phi1, phi2 = view.sent
        raw = control_rates(phi1[following:], phi2[following + 1 :], view.x, self.alpha)[0]
        used = self._clip(raw, view.base_rate)
        here = torch.arange(self.epochs) == following
        return view.x, Chosen(
            torch.where(here, raw, view.scratch.raw),
            torch.where(here, used, view.scratch.used),
            used,
        )

    def rate(self, view: View) -> Tensor | float:
        return view.scratch.now

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, (view.scratch.raw, view.scratch.used)

    def _clip(self, raw: Tensor, base_rate: Tensor) -> Tensor:
        low = 0.1 * base_rate if self.eta_min is None else torch.full_like(base_rate, self.eta_min)
        return torch.minimum(torch.maximum(raw, low), torch.full_like(raw, self.eta_max))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        raw, used = view.payload
        return {
            "mean_client_rate": used.mean(),
            "clipped_share": (raw != used).to(used.dtype).mean(),
        }
