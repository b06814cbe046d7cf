"""Dynamic regularisation: local stationary points that agree with the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Stepped
from shoal.question import question, sends
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Kind, Outputs, Reduction, Terms, Work
from shoal.view import ServerView, View


@state("feddyn.kept")
class Kept(NamedTuple):
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
    derivable_upload: ClassVar[bool] = True

    def server_state(self, view: ServerView) -> Tree:
        return Kept(torch.zeros_like(view.theta))

    def memory(self, view: View) -> Tree:
        return Kept(torch.zeros_like(view.received))

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Kept(view.kept.v - view.memory.v)

    def _mean(self, view: ServerView) -> Tensor:
        """The mean after this round's uploads."""
        return view.state.v + view.payload.v / len(view.members)

    def begin(self, view: ServerView) -> Tree:
        if view.shift is None or "members" not in view.shift.kinds:
            return view.state
        total = torch.zeros_like(view.theta)
        for answer in view.reach.ask(self.own, (), view.reach.remembered(view.members)):
            total = total + answer.v
        return Kept(total / len(view.members))

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
    paper (set ``weights: uniform``, the catalog's choice).

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
        return Kept(view.memory.v - self.alpha * (view.x - view.start))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        h = self._mean(view)
        return Stepped(view.theta + factor * delta - h / self.alpha, Kept(h))


@dataclass(frozen=True, kw_only=True)
class LocalMean(Part):
    """Serves the mean of the last local models instead of the model that training goes on from.

    The FedDyn authors report this one's accuracy.

    Deviations: no paper of its own; it changes nothing about training.
    """

    def server_state(self, view: ServerView) -> Tree:
        return Kept(view.theta)

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        assert view.sent is not None and view.uploads is not None
        return Stepped(theta, Kept(view.sent + view.uploads.delta))

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        return view.state.v
