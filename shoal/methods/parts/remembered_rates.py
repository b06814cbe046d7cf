"""The same rates from remembered trajectories, and along summed gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Work
from shoal.methods.parts.mean_field_rates import (
    AggregatedGradientRate,
    Chosen,
    ControlledRate,
    pretrained,
    summed_gradients,
)
from shoal.methods.slots import Stepped, question, sends
from shoal.methods.view import ServerView, View

# ---- rates kept ----------------------------------------------------------------------------------
# The same control problem with mean-field terms that are not probed every round.


@state("fedagg.kept")
class StoredTrajectory(NamedTuple):
    """A mean trajectory; ``known`` is 1 once there is one, ``sweeps`` what it took."""

    phi1: Tensor
    phi2: Tensor
    known: Tensor
    sweeps: Tensor


@dataclass(frozen=True, kw_only=True)
class KeptRate(ControlledRate):
    """What both share: a trajectory that stays on the server between rounds."""

    def server_state(self, view: ServerView) -> Tree:
        zero = view.theta.new_zeros(())
        phi1, phi2 = super().server_state(view)
        return StoredTrajectory(phi1, phi2, zero, zero)

    def _base_rates(self, view: ServerView) -> Tensor:
        return view.theta.new_full((self.epochs,), view.rate)


@dataclass(frozen=True, kw_only=True)
class PretrainedRate(KeptRate):
    """FedAgg's Algorithm 1 as it is printed: mean-field terms once, before training, over all
    members, used in every round.

    The first estimate is a walk at the base rate; then sweeps along ``phi1`` (eq. 14) with the
    rates of eq. (15) until a signed sum of changes is at most ``tolerance``, or ``most`` sweeps.
    "FedAgg: Adaptive Federated Learning with Aggregated Gradients", 2023, Algorithms 1 and 2.

    Parameters: ``tolerance`` (0.001), ``most`` (100); the others as in ``AggregatedGradientRate``.

    Deviations: the listing names no first estimate beyond "at least 0"; with zero it would stop at
    once with zero rates, so the walk stands in. ``phi2_L`` is updated too, without which the last
    rate has no meaning. The terms of later rounds need models that do not exist before training,
    so those of the first stand for all. Rates shrink towards 0 with every sweep and are clipped.
    Under ``scale: step`` the gradient at a point of the path is the sum over an epoch at the base
    rate from there; under ``epoch`` it is the full gradient there.
    """

    tolerance: float = 1e-3
    most: int = 100

    def before_training(self, view: ServerView) -> Tree:
        if bool(view.state.known > 0):
            return view.state
        everybody = replace(view, cohort=tuple(view.members))

        def gradients(points: Tensor) -> Tensor:
            answers = view.clients.ask(asked, points, everybody.cohort)
            return torch.stack(answers).mean(0)

        asked = self.gradients_at if self.scale == "epoch" else self.strides_at
        first = self._probe(everybody, self._base_rates(view))
        end = pretrained(
            first, gradients, self.alpha, tolerance=self.tolerance, most=self.most, test="signed"
        )
        one = view.theta.new_ones(())
        return StoredTrajectory(*end.trajectory, one, one * end.sweeps)

    @question
    @sends("nothing")
    def gradients_at(self, view: View, payload: Tree) -> Tree:
        """The client's full gradient at every point of a path."""
        return torch.stack([view.full_grad(point) for point in payload])

    @question
    def strides_at(self, view: View, payload: Tree) -> Tree:
        """The sum of the client's gradients over an epoch at the base rate from every point."""
        rate = view.base_rate
        trips = [view.train_from(x, [float(rate)], epoch) for epoch, x in enumerate(payload)]
        return torch.cat([summed_gradients(trip, rate.reshape(1)) for trip in trips])

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {**super().report(view), "sweeps": view.state.sweeps}


@state("fedagg.walked")
class Walked(NamedTuple):
    """A client's own trajectory while it trains, beside its rates."""

    chosen: Chosen
    gradients: Tree  # [L, P], or () where they follow from the points and the rates
    points: Tensor  # [L + 1, P]


@dataclass(frozen=True, kw_only=True)
class RememberedRate(KeptRate):
    """Rates from the trajectory of the round before, moved to the new start: no probe pass.

    ``phi2_k <- w^t + (phi2_k - w^{t-1})``; unmoved, the old trajectory would make rates negative.
    A cheaper reading of "FedAgg: Adaptive Federated Learning with Aggregated Gradients", 2023. The
    first round walks once at the base rate.

    Parameters: as in ``AggregatedGradientRate``.

    Deviations: Remark 1 of the paper says that "the model information required for mean-field terms
    calculation can be obtained from the historical training process", and not how; the round before
    and the move to the new start are our reading of it. ``phi1`` comes from the training epochs:
    under ``scale: step`` their displacements divided by the rates that each client used, under
    ``epoch`` the full gradient at the start of each. Clients send the model of every epoch (and,
    under ``epoch``, the gradient) beside the update, which costs bytes instead of passes.
    """

    @property
    def train_data(self) -> bool:
        return self.scale == "epoch"

    def before_training(self, view: ServerView) -> Tree:
        phi1, phi2, known, sweeps = view.state
        if bool(known > 0):
            return StoredTrajectory(phi1, view.theta + (phi2 - phi2[0]), known, sweeps)
        found = self._probe(view, self._base_rates(view))
        return StoredTrajectory(*found, torch.ones_like(known), sweeps)

    def scratch(self, view: View) -> Tree:
        points = view.received.expand(self.epochs + 1, -1) * 1.0
        if self.scale == "step":
            return Walked(super().scratch(view), (), points)
        gradients = view.received.expand(self.epochs, -1) * 0.0
        first = torch.arange(self.epochs, device=points.device) == 0
        here = torch.where(first.unsqueeze(-1), view.full_grad(view.x), gradients)
        return Walked(super().scratch(view), here, points)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        chosen, gradients, points = view.scratch
        done = view.epoch + 1
        # later places too: who stops here stays here
        epochs = torch.arange(self.epochs + 1, device=points.device)
        at = epochs >= done
        points = torch.where(at.unsqueeze(-1), view.x, points)
        if self.scale == "epoch" and done < self.epochs:
            here = epochs[:-1] == done
            gradients = torch.where(here.unsqueeze(-1), view.full_grad(view.x), gradients)
        return view.x, Walked(self._next(view, chosen), gradients, points)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        chosen, gradients, points = view.scratch
        return delta, (chosen.raw, chosen.used, gradients, points)

    def _chosen(self, view: View) -> Chosen:
        chosen: Chosen = view.scratch.chosen
        return chosen

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        """Leaves the model alone; remembers the mean trajectory of this round."""
        _, used, gradients, points = view.payload
        if self.scale == "step":
            gradients = summed_gradients(points, used)
        phi1, phi2 = gradients.mean(0), points.mean(0)
        return Stepped(theta, view.state._replace(phi1=phi1, phi2=phi2))


# ---- rates along mean ----------------------------------------------------------------------------
# FedAgg's rates with steps along everybody's summed gradients (``direction: mean``, eq. 9).
#
# Kinds of their own, because a part that looks at every step costs every step something.


@dataclass(frozen=True, kw_only=True)
class _AlongMean(ControlledRate):
    """``x <- x - eta_l phi1_l / B_i`` at each of the client's ``B_i`` steps of epoch l."""

    @property
    def counts_batches(self) -> bool:
        return True

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        """A share of the sum and no more: weight decay and momentum are in the sum already."""
        assert view.batches is not None
        return view.x - view.rate * self._mean_direction(view) / view.batches, view.scratch


@dataclass(frozen=True, kw_only=True)
class ProbedAlongMean(_AlongMean, AggregatedGradientRate):
    """Rates from a probe pass per round, steps along everybody's summed gradients of the probe.

    "FedAgg: Adaptive Federated Learning with Aggregated Gradients", 2023, eqs. (9) and (15).

    Parameters: as in ``AggregatedGradientRate``, with ``direction: mean`` and ``scale: step``.

    Deviations: those of ``AggregatedGradientRate``; listing 2 of the paper follows the client's own
    gradient instead. An epoch of ``B_i`` mini-batches moves by ``eta_l phi1_l`` in ``B_i`` equal
    steps, whatever the local optimiser is.
    """


@dataclass(frozen=True, kw_only=True)
class RememberedAlongMean(_AlongMean, RememberedRate):
    """The same steps with the terms of the round before.

    Parameters: as in ``RememberedRate``, with ``direction: mean`` and ``scale: step``.

    Deviations: those of ``RememberedRate`` and ``ProbedAlongMean``. What clients moved by is then
    ``phi1`` itself, so the directions of the first round's probe stay for good: the terms of a
    round before say something new only where clients follow their own gradients.
    """


@dataclass(frozen=True, kw_only=True)
class PretrainedAlongMean(_AlongMean, PretrainedRate):
    """The same steps with the terms of Algorithm 1, made once.

    Parameters: as in ``PretrainedRate``, with ``direction: mean`` and ``scale: step``.

    Deviations: those of ``PretrainedRate`` and ``ProbedAlongMean``.
    """
