"""The path ``FACTORED``: clients with few samples never write the first layer's weights.

A client with twenty samples moves a layer of 784 x 64 weights by a matrix of rank twenty. Here a
chunk keeps that matrix as its two factors (see the pass ``factor_first_layer``): what the layer
makes of all samples under the model that was sent is one matrix product for all clients, and so is
the sum of their changes. Norms come from the factors too: ``|D'X|^2 = sum (D D') * (X X')``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.types import Batch
from shoal.engines.api import Lender, Order, Results, Sums, known, weighted_sum
from shoal.engines.client_round import Carry, Given
from shoal.engines.compiler.emit_torchscript import FactoredScript
from shoal.engines.compiler.graph import FactoredInputs, Steps, empty_of
from shoal.engines.compiler.passes.factor_first_layer import Factors
from shoal.engines.compiler.passes.large_products import product
from shoal.engines.loop import rows_an_epoch, runs_of_steps
from shoal.engines.stacked.compiled import Compiled, StepCall
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.uniform import all_steps, run_uniform, uniform_results


def why_no_factors(compiled: Compiled, order: Order, clients: int, lender: Lender) -> str:
    """Why the steps of so many clients cannot be written with factors; "" if they can."""
    x, rows = order.members[0].train.pool.x, len(order.members[0].train)
    labels = order.members[0].train.labels
    step = _FactoredSteps(compiled, order, clients, lender)

    def real() -> list[Steps]:
        return list(all_steps(Chunk.of(order, order.members[:clients]).epoch(0), rows))

    for epoch in range(order.epochs):
        for place, (_, size) in enumerate(runs_of_steps(order, rows)):
            like = [
                empty_of((clients, size, *x.shape[1:]), x.dtype),
                empty_of((clients, size, *labels.shape[1:]), labels.dtype),
                *([empty_of((clients,), torch.int64)] if order.program.draws else []),
            ]
            found = step.script(
                epoch,
                like,
                lambda place=place: next(real()[place].batches()),  # type: ignore[misc]
            )
            if found is None:
                return "its step does not split it off"
    return ""


def run_factored(compiled: Compiled, chunk: Chunk, lender: Lender) -> Results:
    """The round of a chunk; where something is not finite, every client's change on its own."""
    step = _FactoredSteps(compiled, chunk.order, len(chunk.members), lender)
    stretches: list[_Stretch] = []
    for epoch, value in enumerate(chunk.order.rates):
        for steps in all_steps(chunk.epoch(epoch), chunk.counts[0]):
            found = step.script(epoch, steps.like(), lambda s=steps: next(s.batches()))  # type: ignore[misc]
            if found is None:
                return run_uniform(compiled, chunk, lender)
            stretches.append(_Stretch(*found, steps, value))
    results = _round(chunk, stretches)
    if not math.isfinite(sum(results.norms or ())):
        return run_uniform(compiled, chunk, lender)  # somebody will have to be left out of the sum
    return results


class _FactoredSteps:
    """The factored steps of some clients of an order."""

    def __init__(self, compiled: Compiled, order: Order, clients: int, lender: Lender) -> None:
        self._compiled, self._order = compiled, order
        theta, stats = order.model.theta, order.model.stats
        none = ((),) * len(order.program.method.parts)
        self._x = lender.room(clients, theta)
        numbers = theta.new_zeros(clients)
        self._carry = Carry(self._x, stats.expand(clients, -1), none, (), numbers)
        self._given = Given(theta, order.initial, stats, numbers, none, order.sent)

    def script(
        self, epoch: int, like: list[Tensor], real: Callable[[], list[Tensor]]
    ) -> tuple[FactoredScript, list[Tensor], list[Tensor]] | None:
        """How to do the steps of a length, with carry (its model is not read) and fixed tensors."""
        order, theta = self._order, self._order.model.theta

        def tried() -> Batch:
            self._x.copy_(theta)  # a new step is tried on real models
            return Batch.of(*real())

        rate = known(order.rates[epoch], theta.dtype, theta.device)
        clock = order.clock(epoch)
        call = StepCall(self._given, theta, self._carry, Batch.of(*like), rate, clock)
        replay, bound = self._compiled.step(call, tried)
        return None if replay.factored is None else (replay.factored, *bound)


class _Stretch(NamedTuple):
    """Steps of one length, how to do them, and what that reads besides the model."""

    script: FactoredScript
    carry: list[Tensor]  # the model first, which is not read
    fixed: list[Tensor]
    steps: Steps
    rate: float


def _round(chunk: Chunk, stretches: list[_Stretch]) -> Results:
    order, clients = chunk.order, len(chunk.members)
    factors, theta = stretches[0].script.factors, order.model.theta
    read = rows_an_epoch(order, chunk.counts[0])
    rows = torch.cat([chunk.epoch(e).rows[:, :read] for e in range(order.epochs)], 1)
    x = chunk.pool_x.index_select(0, rows.reshape(-1)).view(clients, -1, factors.inputs)
    seen, rest = _seen(x, theta, factors), _without_layer(theta, factors)
    own = rest.repeat(clients, 1)
    first = 0
    for script, carry, fixed, steps, rate in stretches:
        length = steps.shape[1]
        script([own, *carry[1:]], fixed, seen, steps.columns, first, length, rate)
        first += length * len(steps.rows)
    own.sub_(rest)
    norms: list[float] = _norms(own, seen).tolist()
    stats = order.model.stats.expand(clients, -1)
    results = uniform_results(chunk, theta.new_empty(0, theta.numel()), stats, norms)
    total = _total(own, seen.factors, x, None if order.uniform else results.counts, factors)
    return results._replace(counted=True, sums=Sums(total, stats.sum(0), results.payloads))


def _seen(x: Tensor, theta: Tensor, factors: Factors) -> FactoredInputs:
    """What the layer makes of all samples under the model that was sent, and their products."""
    clients, rows, inputs = x.shape
    weight = theta[factors.start : factors.start + factors.size].view(factors.outputs, inputs)
    outputs = product(x.view(-1, inputs), weight.t()).view(clients, rows, -1)
    return FactoredInputs(outputs, torch.bmm(x, x.transpose(1, 2)), torch.empty_like(outputs))


def _without_layer(theta: Tensor, factors: Factors) -> Tensor:
    """The vector without the layer's weights."""
    return torch.cat([theta[: factors.start], theta[factors.start + factors.size :]])


def _norms(rest: Tensor, seen: FactoredInputs) -> Tensor:
    """Of each client's change of the whole model."""
    crossed = torch.bmm(seen.factors, seen.factors.transpose(1, 2)).mul_(seen.alike)
    squares = crossed.sum((1, 2)).clamp_min_(0) + torch.linalg.vector_norm(rest, dim=1).square_()
    norms: Tensor = squares.sqrt_()
    return norms


def _total(
    rest: Tensor,
    factors: Tensor,
    x: Tensor,
    weights: tuple[float, ...] | None,
    where: Factors,
) -> Tensor:
    """The sum of all changes, each as often as it counts."""
    if weights is not None:
        factors = factors * factors.new_tensor(weights)[:, None, None]
    layer = product(factors.view(-1, where.outputs).t(), x.view(-1, where.inputs))
    others = weighted_sum(rest, weights)
    return torch.cat([others[: where.start], layer.view(-1), others[where.start :]])
