"""A pull towards the received model."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.part import Part
from shoal.types import Outputs, Terms
from shoal.view import View


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
    def stays_put(self) -> bool:
        return True

    def terms(self, view: View, outputs: Outputs) -> Terms:
        return Terms(pull=self.mu * (view.x - view.received))
