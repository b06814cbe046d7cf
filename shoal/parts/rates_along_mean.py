"""FedAgg's rates with steps along everybody's summed gradients (``direction: mean``, eq. 9).

Kinds of their own, because a part that looks at every step costs every step something.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.parts.rates import AggregatedGradientRate, ControlledRate
from shoal.parts.rates_kept import PretrainedRate, RememberedRate
from shoal.tree import Tree
from shoal.view import View


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
