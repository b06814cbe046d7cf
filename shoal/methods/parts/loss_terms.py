"""Terms added to the local loss, and starts beyond the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Kind, Outputs, Reduction, Target, Terms, Work
from shoal.methods.slots import Part, Stepped, question, sends
from shoal.methods.view import ServerView, View

# ---- proximal ------------------------------------------------------------------------------------
# A pull towards the received model.


@dataclass(frozen=True, kw_only=True)
class Proximal(Part):
    """Adds ``mu/2 |x - received|^2`` to the local loss: gradient ``g(x) + mu (x - received)``.

    Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx), 2020. The square is
    halved and the norm is squared; the term is neither stochastic nor weight-decayed, and enters
    before momentum.

    Parameters: ``mu`` (0.01).

    Deviations: none. Some public code drops the half or the square; this does not.

    >>> Proximal(mu=1.0).describe()
    'Proximal(mu=1.0)'
    """

    mu: float = 0.01

    @property
    def leaves_zero_gradients_alone(self) -> bool:
        return True

    def terms(self, view: View, outputs: Outputs) -> Terms:
        return Terms(pull=self.mu * (view.x - view.received))


# ---- dynamic reg ---------------------------------------------------------------------------------
# Dynamic regularisation: local stationary points that agree with the global one.


@state("feddyn.kept")
class Dual(NamedTuple):
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class MemberMean(Part):
    """What duals share: a vector that each client keeps, and its mean over the members present.

    Clients send the change of theirs; the server adds it up with 1/N, N the number of members
    here, and forms the mean anew when members change. Both start at zero. Because the mean is made
    of memories, which a constructed session start keeps, such a start does not reset it either.
    """

    on: tuple[Kind, ...] = ("members",)

    reduction: ClassVar[Reduction] = Reduction.SUM
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"
    upload_costs_nothing: ClassVar[bool] = True

    def server_state(self, view: ServerView) -> Tree:
        return Dual(torch.zeros_like(view.theta))

    def memory(self, view: View) -> Tree:
        return Dual(torch.zeros_like(view.received))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Dual(view.kept.v - view.memory.v)

    def _mean(self, view: ServerView) -> Tensor:
        """The mean after this round's uploads."""
        return view.state.v + view.payload.v / len(view.members)

    def session_begins(self, view: ServerView) -> Tree:
        if view.shift is None or "members" not in view.shift.kinds:
            return view.state
        total = torch.zeros_like(view.theta)
        for answer in view.clients.ask(self.own, (), view.clients.remembered(view.members)):
            total = total + answer.v
        return Dual(total / len(view.members))

    @question
    @sends("nothing")
    def own(self, view: View, payload: Tree) -> Tree:
        """The client's vector, asked when members change."""
        return view.memory


@dataclass(frozen=True, kw_only=True)
class DynamicRegularizer(MemberMean):
    """Local loss ``f_i(x) - <lam_i, x> + alpha/2 |x - start|^2``; then
    ``lam_i <- lam_i - alpha (x_i - start)``; server ``h <- h - (alpha/N) sum (x_i - start)`` and
    ``w <- mean x_i - h/alpha``.

    Acar et al., "Federated Learning Based on Dynamic Regularization" (FedDyn), 2021. ``h`` is the
    mean of ``lam_i`` over the members present; the mean of the local models is unweighted in the
    paper (set ``client_weights: equal``, the catalog's choice).

    Parameters: ``alpha`` (0.1; 0.01 or 0.001 for many classes). A tiny alpha with many local steps
    diverges: ``h/alpha`` does not vanish with it, and alpha -> 0 is not FedAvg.

    Deviations: ``start`` is the received model unless a relaxed start moved it, as in the public
    code that combines the two. N is the number of members present, and ``h`` is formed anew when
    they change. alpha is one for all clients (the authors scale it by ``mean(n)/n_i`` for unequal
    sizes). The change of ``lam_i`` is carried as a payload, so that ``h`` stays the mean of the
    ``lam_i`` under any start and any weights; a server could form it from the displacements when
    clients start at the received model. A constructed session start keeps ``h`` with the ``lam_i``.
    """

    alpha: float = 0.1

    def terms(self, view: View, outputs: Outputs) -> Terms:
        return Terms(pull=self.alpha * (view.x - view.start) - view.memory.v)

    def client_end(self, view: View, work: Work) -> Tree:
        return Dual(view.memory.v - self.alpha * (view.x - view.start))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        h = self._mean(view)
        return Stepped(view.theta + factor * delta - h / self.alpha, Dual(h))


@dataclass(frozen=True, kw_only=True)
class LocalMean(Part):
    """Serves the mean of the last local models instead of the model that training goes on from.

    The FedDyn authors report this one's accuracy.

    Deviations: no paper of its own; it changes nothing about training.
    """

    def server_state(self, view: ServerView) -> Tree:
        return Dual(view.theta)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        assert view.sent is not None and view.uploads is not None
        return Stepped(theta, Dual(view.sent + view.uploads.delta))

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        return view.state.v


# ---- drift correction ----------------------------------------------------------------------------
# Learns how far each client drifts, and takes it back.


@dataclass(frozen=True, kw_only=True)
class DriftCorrection(MemberMean):
    """Local gradient ``g(x) + alpha (x + h_i - start)``; then ``h_i <- h_i + x_i - start``; server
    ``w <- mean x_i + (1/N) sum over all members of h_i``.

    Gao et al., "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
    Correction", 2022; the catalog's ``feddc`` adds the control variates of SCAFFOLD, which are its
    gradient correction. Without them this is FedDyn with ``lam_i = -alpha h_i``, but for alpha = 0,
    where FedDyn divides by zero.

    Parameters: ``alpha`` (0.1; FLASH's authors: 0.5 EMNIST, Shakespeare, 0.01 CIFAR).

    Deviations: as the authors' code, which uses the SCAFFOLD recursion (the paper describes
    last-round updates); unlike it, rates are those really used, and alpha is not scaled by
    ``mean(n)/n_i``. ``start`` is the received model unless a relaxed start moved it. N and the mean
    drift are over the members present.
    """

    alpha: float = 0.1

    def terms(self, view: View, outputs: Outputs) -> Terms:
        return Terms(pull=self.alpha * (view.x - view.start + view.memory.v))

    def client_end(self, view: View, work: Work) -> Tree:
        return Dual(view.memory.v + (view.x - view.start))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        drift = self._mean(view)
        return Stepped(view.theta + factor * delta + drift, Dual(drift))


# ---- relaxed start -------------------------------------------------------------------------------
# Each client starts a little beyond the global model, away from its last local model.


@state("fedinit.last_local")
class LastLocal(NamedTuple):
    z: Tensor


@dataclass(frozen=True, kw_only=True)
class RelaxedStart(Part):
    """``x_i^0 = w + beta (w - z_i)``, then ``z_i <- x_i``.

    Sun et al., "Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed
    Initialization" (FedInit), 2023. Parameters: ``beta`` (0.1; the theory wants less than 0.102),
    ``aggregate`` (``model``: the server takes the mean of local models, as printed; ``update``: it
    adds the mean of ``x_i - x_i^0``, as the authors' simulator does), ``unseen`` (``initial``: the
    memory of a client never seen is ``w^0``, as in paper and simulator; ``global``: it starts at
    the received model).

    Deviations: a server rate or optimiser of the method it is composed with acts on the step to
    that mean (the paper has none), and the mean has that method's weights. Running statistics begin
    as received. A memory is refreshed only when its client takes part, and kept over a constructed
    session start.
    """

    beta: float = 0.1
    aggregate_as: Literal["model", "update"] = "model"
    unseen: Literal["initial", "global"] = "initial"

    def memory(self, view: View) -> Tree:
        return LastLocal(view.initial if self.unseen == "initial" else view.received)

    def client_start(self, view: View) -> Tensor:
        return view.x + self.beta * (view.received - view.memory.z)

    def client_end(self, view: View, work: Work) -> Tree:
        return LastLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: LastLocal = memory
        return last.z

    @property
    def changes_upload(self) -> bool:
        return self.aggregate_as == "update"

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        if self.aggregate_as == "model":
            return delta, ()
        return delta - (view.start - view.received), ()


# ---- contrastive ---------------------------------------------------------------------------------
# Features that stay near the global model's and leave the client's previous ones.


def unit(z: Tensor) -> Tensor:
    """Rows scaled to length one; a row of zeros stays zero, with a finite gradient."""
    return z * z.square().sum(-1, keepdim=True).clamp_min(1e-16).rsqrt()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine similarity of every row."""
    return (unit(a) * unit(b)).sum(-1)


def contrast_rows(z: Tensor, z_global: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """``log(1 + exp((s_prev - s_glob) / tau))`` of every row.

    The difference of the two cosines is taken as one product, so that equal models give log 2 with
    a gradient of exactly zero.

    >>> import torch
    >>> z, g, p = (torch.tensor([v], dtype=torch.float64) for v in ([1, 2.0], [2, 1.0], [0, 1.0]))
    >>> round(0.8 * float(contrast_rows(z, g, p, 1.0)), 9)
    0.593179939
    """
    apart = (unit(z) * (unit(z_prev) - unit(z_global))).sum(-1)
    return softplus(apart / tau, threshold=40.0)


@dataclass(frozen=True, kw_only=True)
class ModelContrast(Part):
    """Adds ``mu mean log(1 + exp((cos(z, z_prev) - cos(z, z_glob)) / tau))`` to the local loss.

    Li et al., "Model-Contrastive Federated Learning" (MOON), 2021. ``z`` are the features of the
    model in training, ``z_glob`` those of the received model, ``z_prev`` those of the client's last
    local model; the last two are frozen and in evaluation mode. Three forward passes per batch.

    Parameters: ``mu`` (1), ``tau`` (1; the original 0.5), ``prev_init`` (at first contact the
    previous model is the ``received`` one, which makes the term the constant ``mu log 2``, or the
    ``init`` model of the run).

    Deviations: none for a model with a projection head as its features; a model without one uses
    its last hidden layer, and without hidden layers its logits. Frozen models see the client's
    current running statistics.
    """

    mu: float = 1.0
    tau: float = 1.0
    prev_init: Literal["received", "init"] = "received"

    targets: ClassVar[tuple[Target, ...]] = ("class", "multi_label", "number")

    def memory(self, view: View) -> Tree:
        return LastLocal(view.initial if self.prev_init == "init" else view.received)

    def terms(self, view: View, outputs: Outputs) -> Terms:
        batch = view.batch
        assert batch is not None
        near, far = (view.forward(m, batch).features for m in (view.received, view.memory.z))
        z, near, far = (features.flatten(1) for features in (outputs.features, near, far))
        rows = contrast_rows(z, near.detach(), far.detach(), self.tau)
        return Terms(extra=self.mu * batch.mean(rows))

    def client_end(self, view: View, work: Work) -> Tree:
        return LastLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: LastLocal = memory
        return last.z
