"""Learns how far each client drifts, and takes it back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.part import Stepped
from shoal.parts.dynamic_reg import Kept, MemberMean
from shoal.tree import Tree
from shoal.types import Outputs, Terms, Work
from shoal.view import ServerView, View


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
        return Kept(view.memory.v + (view.x - view.start))

    def server_step(self, view: ServerView, delta: Tensor, factor: float | Tensor) -> Stepped:
        drift = self._mean(view)
        return Stepped(view.theta + factor * delta + drift, Kept(drift))
