"""Client rates from a control problem around the mean trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from operator import ne
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent
from shoal.parts.mean_field import (
    Trajectory,
    control_rates,
    mean_trajectory,
    summed_gradients,
)
from shoal.parts.walk import Stride, Walk
from shoal.question import question, trains
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import GradFn, ServerView, View


@state("fedagg.chosen")
class Chosen(NamedTuple):
    """``raw`` and ``used`` have one entry an epoch; ``now`` is this epoch's rate."""

    raw: Tensor
    used: Tensor
    now: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlledRate(Part):
    """What all of them share: from a mean trajectory to one rate per epoch, clipped and told."""

    alpha: float = 0.1
    feedback: Literal["open loop", "closed loop"] = "open loop"
    eta_min: float | None = None
    eta_max: float = 0.999
    epochs: int = 3
    direction: Literal["local", "mean"] = "local"
    scale: Literal["step", "epoch"] = "step"

    sets_rate: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def server_state(self, view: ServerView) -> Tree:
        size = view.theta.numel()
        return Trajectory(
            view.theta.new_zeros(self.epochs, size), view.theta.new_zeros(self.epochs + 1, size)
        )

    @trains(Walk)
    @question
    def walk(self, view: View, payload: Tree) -> Tree:
        """The client's own gradients and models over L epochs, at the given rate of each."""
        x, gradients, points = view.received, [], [view.received]
        for epoch, rate in enumerate(payload):
            gradients.append(view.full_grad(x))
            x = view.descend(x, float(rate), epoch, decayed=True)
            points.append(x)
        return Trajectory(torch.stack(gradients), torch.stack(points))

    @trains(Stride, as_the_run=True)
    @question
    def stride(self, view: View, payload: Tree) -> Tree:
        """The client's models before and after each of L epochs of its own training."""
        return view.train_from(view.received, [float(rate) for rate in payload])

    def _probe(self, view: ServerView, rates: Tensor) -> Trajectory:
        if self.scale == "epoch":
            return mean_trajectory(view.reach.ask(self.walk, tuple(rates), view.cohort))
        points = torch.stack(view.reach.ask(self.stride, tuple(rates), view.cohort)).mean(0)
        # everybody walked at these rates, so the mean of the sums is the sum of the mean path
        return Trajectory(summed_gradients(points, rates), points)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, Trajectory(view.state.phi1, view.state.phi2))

    def scratch(self, view: View) -> Tree:
        phi1, phi2 = view.sent
        raw = control_rates(phi1, phi2[1:], view.received, self.alpha)
        used = self._clip(raw, view.base_rate)
        if self.feedback == "open loop":
            return Chosen(raw, used, used[0])
        shown = torch.zeros_like(raw)
        first = torch.arange(self.epochs, device=raw.device) == 0
        return Chosen(torch.where(first, raw, shown), torch.where(first, used, shown), used[0])

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return view.x, self._next(view, view.scratch)

    def _next(self, view: View, chosen: Chosen) -> Chosen:
        """The rate of the following epoch."""
        following = view.epoch + 1
        if following >= self.epochs:
            return chosen
        if self.feedback == "open loop":
            return chosen._replace(now=chosen.used[following])
        phi1, phi2 = view.sent
        raw = control_rates(phi1[following:], phi2[following + 1 :], view.x, self.alpha)[0]
        used = self._clip(raw, view.base_rate)
        here = torch.arange(self.epochs, device=raw.device) == following
        return Chosen(
            torch.where(here, raw, chosen.raw), torch.where(here, used, chosen.used), used
        )

    def grad(self, view: View, inner: GradFn) -> Tensor:
        """The client's own gradient, or (eq. 9) everybody's at this epoch of the probe."""
        if self.direction == "local":
            return inner(view.x)
        return self._mean_direction(view)

    def _mean_direction(self, view: View) -> Tensor:
        phi1: Tensor = view.sent.phi1
        return phi1[min(view.epoch, self.epochs - 1)]

    def rate(self, view: View) -> Tensor | float:
        return self._chosen(view).now

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        chosen = self._chosen(view)
        return delta, (chosen.raw, chosen.used)

    def _chosen(self, view: View) -> Chosen:
        chosen: Chosen = view.scratch
        return chosen

    def _clip(self, raw: Tensor, base_rate: Tensor) -> Tensor:
        low = 0.1 * base_rate if self.eta_min is None else torch.full_like(base_rate, self.eta_min)
        return torch.clamp(raw, low, torch.full_like(low, self.eta_max))

    def report(self, view: ServerView) -> dict[str, Tensor]:
        # a few numbers a client: as Python's they cost less than the operators on them
        raw, used = (leaf.flatten().tolist() for leaf in view.payload[:2])
        shares = (
            sum(used) / len(used),
            sum(map(ne, raw, used)) / len(raw),
            sum(0.0 < rate < 1.0 for rate in raw) / len(raw),
        )
        found = view.theta.new_tensor(shares).unbind()
        return dict(zip(("mean_client_rate", "clipped_share", "inside_share"), found, strict=True))


@dataclass(frozen=True, kw_only=True)
class AggregatedGradientRate(ControlledRate):
    """One rate per epoch that keeps clients near the participants' mean trajectory.

    "FedAgg: Adaptive Federated Learning with Aggregated Gradients", 2023, eq. (15), solved as a
    linear system. Every round the participants first walk ``L`` epochs at the base rate; the means
    of their gradients (``phi1_l``) and of their models (``phi2_l``) give the rates, clipped to
    ``[eta_min, eta_max]``. The control problem supposes ``w_{l+1} = w_l - eta_l phi1_l`` (eq. 14).

    ``scale`` says what ``phi1`` is. ``step``: the displacement of an epoch divided by its rate,
    that is the sum of its mini-batch gradients (weight decay and momentum as the local optimiser
    adds them), so that eq. (14) holds exactly along the probe. Rates then lie close to the base
    rate, and the method is close to FedAvg at the base rate. ``epoch``: the full local gradient at
    the start of the epoch. An epoch of ``B`` mini-batches moves about ``B`` times as far as eq.
    (14) says, so rates come out at about **the base rate times B**, and are applied at each of the
    B steps. What ``epoch`` gains over FedAvg is then for the most part what a larger rate gains:
    compare with FedAvg at the mean rate used (``mean_client_rate`` in the record). With one
    mini-batch per epoch the two are one method.

    Parameters: ``alpha`` (0.1), ``feedback`` (``open loop``: solved once at the received model, all
    clients share the rates; ``closed loop``: again at every epoch with the client's own weights),
    ``eta_min`` (a tenth of the base rate), ``eta_max`` (0.999), ``epochs`` (L, the local epochs;
    must equal ``local.epochs``), ``probe_passes`` (1; further passes walk again at the clipped
    rates that the pass before gave, shared by all clients), ``direction`` (``local``: steps follow
    the client's own gradient, as listing 2; ``mean``: they follow ``phi1_l``, as eq. (9), each of
    a client's ``B_i`` steps ``phi1_l / B_i`` under ``scale: step``), ``scale`` (``step``).

    Deviations: the literal fixed point of the paper's pre-training loop is the zero rate, so one
    probe pass per round over the participants is used instead, each along its own gradient. Eq. (1)
    writes an epoch of mini-batch SGD as one step, and no sentence says what its gradient is:
    ``scale`` has both readings, ``step`` is the one that agrees with eqs. (9) and (14), ``epoch``
    is nearer to the printed figures and what the paper's recipes say. The probe of ``epoch`` is
    SGD without momentum; with ``direction: mean`` and ``epoch`` the local optimiser adds its decay
    and momentum to ``phi1_l`` once more. ``eta_min`` and ``eta_max`` are ours; the paper says that
    rates lie in (0, 1). All of ``phi1`` and ``phi2`` goes down (2L + 1 vectors), for every client
    solves for itself. The printed closed form for two
    epochs has typos; the linear system does not. Rates leave (0, 1) without clipping; the clipped
    share and the share inside (0, 1) are reported.
    """

    probe_passes: int = 1

    def ask(self, view: ServerView) -> Tree:
        base = view.theta.new_full((), view.rate)
        rates, found = base.expand(self.epochs), view.state
        for after in reversed(range(self.probe_passes)):
            found = self._probe(view, rates)
            if after:  # clients find the rates of the last pass themselves
                raw = control_rates(found.phi1, found.phi2[1:], view.theta, self.alpha)
                rates = self._clip(raw, base)
        return found
