"""Local progress normalised by the amount of local work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from shoal.errors import UserError
from shoal.part import Part
from shoal.parts.aggregators import scaled_mean
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import ServerView, View


def accumulated(steps: Tensor, rho: float, shrink: float | Tensor) -> Tensor:
    """``|a_i|_1``: how many gradients' worth of progress ``steps`` local steps are.

    Plain SGD ``K``; momentum rho ``(K - rho (1 - rho^K)/(1 - rho)) / (1 - rho)``; proximal term
    with ``shrink = eta mu``: ``(1 - (1 - shrink)^K) / shrink``.

    >>> import torch
    >>> steps = torch.tensor([2.0, 4.0], dtype=torch.float64)
    >>> [round(a, 9) for a in accumulated(steps, 0.9, 0.0).tolist()]
    [2.9, 9.049]
    """
    if rho:
        return (steps - rho * (1.0 - rho**steps) / (1.0 - rho)) / (1.0 - rho)
    if isinstance(shrink, Tensor):
        return (1.0 - (1.0 - shrink) ** steps) / shrink
    return steps


@state("fednova.effort")
class Effort(NamedTuple):
    norm: Tensor  # |a_i|_1
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class NormalizedProgress(Part):
    """``w <- w + tau sum p_i D_i / |a_i|``, ``tau = sum p_i |a_i|`` (proximal: ``sum p_i K_i``).

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization" (FedNova), 2020: unequal numbers of local steps no longer bias the objective. The
    server needs the displacement and the number ``|a_i|_1`` (see ``accumulated``) of every client;
    a server optimiser behind it, such as ``fedavgm``, acts on the normalised step.

    Parameters: ``rho`` (0: the local optimiser's momentum; another one is refused), ``mu`` (0: the
    weight of a proximal term). The catalog's ``fednova`` sets both up.

    Deviations: rho and mu together are refused (the public code mixes the two recursions).
    ``eta mu`` uses the mean of the rates that were really used. ``K_i`` goes up beside ``|a_i|``,
    two numbers instead of one.
    """

    rho: float = 0.0
    mu: float = 0.0

    individual_uploads: ClassVar[bool] = True
    reduction: ClassVar[Reduction] = Reduction.STACK

    def __post_init__(self) -> None:
        if self.rho and self.mu:
            raise UserError("fednova: rho (momentum) and mu (proximal) exclude each other")

    @property
    def displacement_memory(self) -> bool:
        return True

    @property
    def reckoned_momentum(self) -> float | None:
        return self.rho

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        shrink = self.mu * work.rate_sum / work.steps if self.mu else 0.0
        return delta, Effort(accumulated(work.steps, self.rho, shrink), work.steps)

    def _effective(self, view: ServerView) -> float:
        """``tau``; exactly the common value where all clients did the same."""
        assert view.uploads is not None
        done = (view.payload.steps if self.mu else view.payload.norm).tolist()
        pairs = zip(view.uploads.weights, done, strict=True)
        return float(done[0] + sum(p * (one - done[0]) for p, one in pairs))

    def aggregate(self, view: ServerView) -> Tensor:
        assert view.uploads is not None
        tau = self._effective(view)
        norms = view.payload.norm.tolist()
        return scaled_mean(view.uploads, [tau / a if a else 0.0 for a in norms])

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"tau_eff": view.theta.new_tensor(self._effective(view))}
