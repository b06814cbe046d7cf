"""Client learning rates from the mean trajectory (FedAgg), probed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ne
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Reduction, Work
from shoal.methods.slots import Part, Sent, question, trains
from shoal.methods.view import GradFn, ServerView, View

# ---- mean field ----------------------------------------------------------------------------------
# The control problem around a mean trajectory, and the pre-training loop printed for it.

Test = Literal["signed", "norm"]


@state("fedagg.trajectory")
class Trajectory(NamedTuple):
    """Mean gradients of epochs 0..L-1 (one gradient or the sum of an epoch's, as the method's scale
    says) and mean models before and after every epoch."""

    phi1: Tensor  # [L, P]
    phi2: Tensor  # [L + 1, P], row 0 is the start


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
    still_ahead = (index[None, :] >= index[:, None]).to(phi1.dtype)  # epochs that epoch p acts on
    right = c * ((phi1 @ (w - phi2).T) * still_ahead).sum(-1)
    return right / matrix[0] if epochs == 1 else torch.linalg.solve(matrix, right)


def mean_trajectory(answers: Sequence[Trajectory]) -> Trajectory:
    """The plain mean over clients."""
    phi1, phi2 = (torch.stack(leaves).mean(0) for leaves in zip(*answers, strict=True))
    return Trajectory(phi1, phi2)


def summed_gradients(points: Tensor, rates: Tensor) -> Tensor:
    """``[..., L, P]``: the displacement of every epoch divided by its rate, from the models before
    and after each, ``[..., L + 1, P]``: with SGD, the sum of the epoch's mini-batch gradients.

    >>> points = torch.tensor([[1.0], [0.8], [0.7]], dtype=torch.float64)
    >>> summed_gradients(points, torch.tensor([0.1, 0.1])).flatten().round(decimals=6).tolist()
    [2.0, 1.0]
    """
    moved = points[..., :-1, :] - points[..., 1:, :]
    rate = rates.unsqueeze(-1).to(points.dtype)
    still = rate == 0  # who does not move has said nothing about its gradients
    return torch.where(still, torch.zeros_like(moved), moved / torch.where(still, 1.0, rate))


class Swept(NamedTuple):
    """Where the pre-training loop ended: after how many sweeps, and how large its last changes
    were (summed over epochs, as the stop test measures them)."""

    trajectory: Trajectory
    sweeps: int
    change1: float
    change2: float
    met: bool


def sweep(phi: Trajectory, rates: Tensor, gradients: Callable[[Tensor], Tensor]) -> Trajectory:
    """One pass of the loop: everybody walks along ``phi1`` with these rates (eq. 14), from one
    start, so on one path; ``gradients`` gives the clients' mean gradient at each of its points."""
    points = [phi.phi2[0]]
    for rate, direction in zip(rates, phi.phi1, strict=True):
        points.append(points[-1] - rate * direction)
    path = torch.stack(points)
    return Trajectory(gradients(path[:-1]), path)


def pretrained(
    phi: Trajectory,
    gradients: Callable[[Tensor], Tensor],
    alpha: float,
    *,
    tolerance: float = 1e-3,
    most: int = 100,
    test: Test = "signed",
) -> Swept:
    """Algorithm 1 of FedAgg from a first estimate ``phi``.

    ``signed`` is the stop test as printed: signed sums of all changes, and the loop goes on only
    while both are above the tolerance. ``norm`` wants both norms at or below it.

    The rates of ``phi`` at its own start would have to reproduce its path; only zero rates do, so
    every sweep shortens the path:

    >>> start = torch.ones(1, dtype=torch.float64)
    >>> walk = Trajectory(torch.ones(1, 1).double(), torch.tensor([[1.0], [0.95]]).double())
    >>> end = pretrained(walk, lambda points: points, 0.1, test="norm")
    >>> rates = control_rates(end.trajectory.phi1, end.trajectory.phi2[1:], start, 0.1)
    >>> end.met, bool(rates < 0.05)
    (True, True)
    """
    change1 = change2 = float("inf")
    for count in range(1, most + 1):
        rates = control_rates(phi.phi1, phi.phi2[1:], phi.phi2[0], alpha)
        new = sweep(phi, rates, gradients)
        change1, change2 = (_size(a - b, test) for a, b in zip(new, phi, strict=True))
        phi = new
        small = (change1 <= tolerance, change2 <= tolerance)
        if any(small) if test == "signed" else all(small):
            return Swept(phi, count, change1, change2, True)
    return Swept(phi, most, change1, change2, False)


def _size(change: Tensor, test: Test) -> float:
    """Of one mean-field term, summed over epochs."""
    return float(
        change.sum() if test == "signed" else torch.linalg.vector_norm(change, dim=-1).sum()
    )


# ---- walk ----------------------------------------------------------------------------------------
# Walks: local training that remembers where it was, and how steep it was there.


@dataclass(frozen=True, kw_only=True)
class Walk(Part):
    """Uploads the full local gradient before every epoch and the model around each of them.

    The client half of FedAgg's probe as a method of its own, for engines that stack clients; one
    client alone answers ``ControlledRate.walk``, and the two agree.

    Deviations: none from the probe; what the probe departs from stands with ``ControlledRate``'s
    kinds.
    """

    train_data: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def scratch(self, view: View) -> Tree:
        epochs = view.epochs
        phi1 = view.x.new_zeros(epochs, view.x.numel())
        phi2 = view.x.new_zeros(epochs + 1, view.x.numel())
        return Trajectory(_placed(phi1, 0, view.full_grad(view.x)), _placed(phi2, 0, view.received))

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        phi1, phi2 = view.scratch
        following = view.epoch + 1
        if following < view.epochs:
            phi1 = _placed(phi1, following, view.full_grad(view.x))
        return view.x, Trajectory(phi1, _placed(phi2, following, view.x))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, view.scratch


@dataclass(frozen=True, kw_only=True)
class Stride(Part):
    """Uploads the models around every epoch of training as the run trains, ``[L + 1, P]``.

    The client half of FedAgg's probe under ``scale: step``, for engines that stack clients; one
    client alone answers ``ControlledRate.stride``, and the two agree.

    Deviations: none from the probe; what the probe departs from stands with ``ControlledRate``'s
    kinds.
    """

    reduction: ClassVar[Reduction] = Reduction.STACK

    def scratch(self, view: View) -> Tree:
        return _placed(view.x.new_zeros(view.epochs + 1, view.x.numel()), 0, view.received)

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return view.x, _placed(view.scratch, view.epoch + 1, view.x)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, view.scratch


def _placed(rows: Tensor, place: int, row: Tensor) -> Tensor:
    return torch.cat([rows[:place], row.unsqueeze(0), rows[place + 1 :]])


# ---- rates ---------------------------------------------------------------------------------------
# Client rates from a control problem around the mean trajectory.


@state("fedagg.chosen")
class Chosen(NamedTuple):
    """``raw`` and ``used`` have one entry per epoch; ``now`` is this epoch's rate."""

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
            return mean_trajectory(view.clients.ask(self.walk, tuple(rates), view.cohort))
        points = torch.stack(view.clients.ask(self.stride, tuple(rates), view.cohort)).mean(0)
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
        # a few numbers per client: as Python's they cost less than the operators on them
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

    def before_training(self, view: ServerView) -> Tree:
        base = view.theta.new_full((), view.rate)
        rates, found = base.expand(self.epochs), view.state
        for after in reversed(range(self.probe_passes)):
            found = self._probe(view, rates)
            if after:  # clients find the rates of the last pass themselves
                raw = control_rates(found.phi1, found.phi2[1:], view.theta, self.alpha)
                rates = self._clip(raw, base)
        return found
