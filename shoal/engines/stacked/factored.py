"""Plain chunks of clients with few samples: the first layer's weights are never written.

A client with twenty samples moves a layer of 784 x 64 weights by a matrix of rank twenty. Here a
chunk keeps that matrix as its two factors (see the pass ``factor_first_layer``): what the layer
makes of all samples under the model that was sent is one matrix product for all clients, and so is
the sum of their changes. Norms come from the factors too: ``|D'X|^2 = sum (D D') * (X X')``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.api import Order, Results
from shoal.engines.client_round import Carry, Given
from shoal.engines.compiler.emit_factored import FactoredScript, Seen
from shoal.engines.compiler.emit_torchscript import Steps
from shoal.engines.compiler.passes.factor_first_layer import Factors
from shoal.engines.numbers import known
from shoal.engines.stacked.active_clients import weighted_sum
from shoal.engines.stacked.compiled import Compiled
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plain import ROOMS, all_steps, give_all, plain_results, run_plain
from shoal.types import Batch

CACHE_BYTES = 8 * 2**20
SMALL_LAYER = 2**14  # weights below which nothing is won
_APART = {torch.float32: 1e-4, torch.float64: 1e-10}  # relative, of two ways to do a round


def clients_at_once(compiled: Compiled, order: Order) -> int | None:
    """How many clients of an order make a chunk of this kind; None if it does not pay."""
    layer = _layer(compiled, order)
    if layer is None:
        return None
    rows = order.epochs * max([len(m.train) for m in order.members])
    outputs, inputs = layer
    if rows > outputs:
        return None
    theta = order.model.theta
    numbers = rows * (inputs + 3 * outputs + rows) + 2 * (theta.numel() - outputs * inputs)
    return max(2, CACHE_BYTES // (numbers * theta.element_size()))


def _layer(compiled: Compiled, order: Order) -> tuple[int, int] | None:
    """Outputs and inputs of the layer that reads the samples; None if there is nothing to win.

    The products of every two samples cost ``rows / (2 outputs)`` of what the layer itself does, so
    a client must also have no more rows than it has outputs.
    """
    if compiled.factored is False or not (compiled.plain and order.summed):
        return None
    shapes = order.program.task.layout.shapes
    if not shapes or len(shapes[0]) != 2 or shapes[0][0] * shapes[0][1] < SMALL_LAYER:
        return None
    outputs, inputs = shapes[0]
    return (outputs, inputs) if order.members[0].train.pool.x[:1].numel() == inputs else None


def run_factored(compiled: Compiled, chunk: Chunk) -> Results | None:
    """The round of a plain chunk, or None where :func:`run_plain` has to do it."""
    layer = _layer(compiled, chunk.order)
    if layer is None or chunk.order.epochs * chunk.counts[0] > layer[0]:
        return None
    stretches = _stretches(compiled, chunk)
    if stretches is None:
        compiled.factored = False
        return None
    results = _round(chunk, stretches)
    if not math.isfinite(sum(results.norms or ())):
        return None  # somebody will have to be left out of the sum: each one's change is needed
    if compiled.factored is None:  # the first time both ways are gone
        compiled.factored = _agree(results, run_plain(compiled, chunk))
    return results if compiled.factored else None


class _Stretch(NamedTuple):
    """Steps of one length, how to do them, and what that reads besides the model."""

    script: FactoredScript
    steps: Steps
    rate: float
    carry: list[Tensor]  # the model first, which is not read
    fixed: list[Tensor]


def _stretches(compiled: Compiled, chunk: Chunk) -> list[_Stretch] | None:
    """All steps of the round; None where they are not of that kind."""
    order, theta, clients = chunk.order, chunk.order.model.theta, len(chunk.members)
    none = ((),) * len(order.program.method.parts)
    x, stats = ROOMS.of(clients, theta), order.model.stats
    carry = Carry(x, stats.expand(clients, -1), none, (), theta.new_zeros(clients))
    given = Given(theta, order.initial, stats, theta.new_zeros(clients), none, order.sent)
    found = []
    for epoch, value in enumerate(order.rates):
        rate, clock = known(value, theta.dtype, theta.device), order.clock(epoch)
        for steps in all_steps(chunk.epoch(epoch), chunk.counts[0]):

            def real(steps: Steps = steps) -> Batch:
                give_all(theta, x)  # a new trace is tried on real models
                return Batch(*next(steps.batches()))

            like = Batch(*steps.like())
            replay, flat, fixed = compiled.step(given, theta, carry, like, rate, (), clock, real)
            if replay.factored is None:
                return None
            found.append(_Stretch(replay.factored, steps, value, flat, fixed))
    return found


def _round(chunk: Chunk, stretches: list[_Stretch]) -> Results:
    order, clients = chunk.order, len(chunk.members)
    factors, theta = stretches[0].script.factors, order.model.theta
    rows = torch.cat([chunk.epoch(e).rows for e in range(order.epochs)], 1)
    x = chunk.pool_x.index_select(0, rows.reshape(-1)).view(clients, -1, factors.inputs)
    seen, rest = _seen(x, theta, factors), _without_layer(theta, factors)
    own = torch.empty(clients, rest.numel(), dtype=theta.dtype)
    give_all(rest, own)
    first = 0
    for script, steps, rate, carry, fixed in stretches:
        length = steps.shape[1]
        script([own, *carry[1:]], fixed, seen, steps.columns, first, length, rate)
        first += length * len(steps.rows)
    own.sub_(rest)
    counts = [m.train.count for m in chunk.members]
    total = _total(own, seen.factors, x, counts, bool(order.uniform), factors)
    norms: list[float] = _norms(own, seen).tolist()
    return plain_results(chunk, counts, theta.new_empty(0, theta.numel()), norms, total)


def _seen(x: Tensor, theta: Tensor, factors: Factors) -> Seen:
    """What the layer makes of all samples under the model that was sent, and their products."""
    clients, rows, inputs = x.shape
    weight = theta[factors.start : factors.start + factors.size].view(factors.outputs, inputs)
    outputs = torch.mm(x.view(-1, inputs), weight.t()).view(clients, rows, -1)
    return Seen(outputs, torch.bmm(x, x.transpose(1, 2)), torch.empty_like(outputs))


def _without_layer(theta: Tensor, factors: Factors) -> Tensor:
    """The vector without the layer's weights."""
    return torch.cat([theta[: factors.start], theta[factors.start + factors.size :]])


def _norms(rest: Tensor, seen: Seen) -> Tensor:
    """Of each client's change of the whole model."""
    crossed = torch.bmm(seen.factors, seen.factors.transpose(1, 2)).mul_(seen.alike)
    squares = crossed.sum((1, 2)).clamp_min_(0) + torch.linalg.vector_norm(rest, dim=1).square_()
    norms: Tensor = squares.sqrt_()
    return norms


def _total(
    rest: Tensor,
    factors: Tensor,
    x: Tensor,
    counts: list[float],
    uniform: bool,
    where: Factors,
) -> Tensor:
    """The sum of all changes, each as often as it counts."""
    if not uniform:
        factors = factors * factors.new_tensor(counts)[:, None, None]
    layer = torch.mm(factors.view(-1, where.outputs).t(), x.view(-1, where.inputs))
    others = weighted_sum(rest, counts, uniform)
    return torch.cat([others[: where.start], layer.view(-1), others[where.start :]])


def _agree(found: Results, plain: Results) -> bool:
    """Whether two ways to do a round came to the same."""
    if found.total is None or plain.total is None:
        return False
    apart, limit = (found.total - plain.total).norm(), _APART.get(plain.total.dtype, 0.0)
    norms = zip(found.norms or (), plain.norms or (), strict=True)
    same = all(math.isclose(a, b, rel_tol=limit) for a, b in norms)
    return same and bool(apart <= limit * sum(plain.norms or ()))
