"""The path ``UNIFORM``: all clients start at the model, take equal steps and send their change.

Most rounds are made of these, so they get the shortest way: a room that is lent for the clients'
models, and of the changes only the norms and the sum where nobody asks for more.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.core.types import Batch
from shoal.engines.api import Lender, Results, known
from shoal.engines.client_round import Carry, Given
from shoal.engines.compiler.graph import Steps
from shoal.engines.loop import rows_an_epoch, runs_of_steps, steps_an_epoch
from shoal.engines.stacked.compiled import Compiled, StepCall
from shoal.engines.stacked.layout import Chunk, Epoch


def run_uniform(compiled: Compiled, chunk: Chunk, lender: Lender) -> Results:
    """The round of such a chunk."""
    order, clients = chunk.order, len(chunk.members)
    theta, counts = order.model.theta, [m.train.count for m in chunk.members]
    none = ((),) * len(order.program.method.parts)
    x = lender.room(clients, theta) if order.summed else theta.new_empty(clients, theta.numel())
    x.copy_(theta)
    stats = order.model.stats.expand(clients, -1)
    stats = stats.clone() if stats.numel() else stats
    carry = Carry(x, stats, none, (), theta.new_zeros(clients))
    number = known(tuple(counts), theta.dtype, theta.device)
    given = Given(theta, order.initial, order.model.stats, number, none, order.sent)
    for epoch in range(order.epochs):
        _epoch(compiled, chunk, epoch, given, carry)
    norms: list[float] = torch.linalg.vector_norm(x.sub_(theta), dim=1).tolist()
    return uniform_results(chunk, x, stats, norms)


def uniform_results(chunk: Chunk, delta: Tensor, stats: Tensor, norms: list[float]) -> Results:
    """Of clients that all took the same steps and sent nothing but the change of the model."""
    order, clients = chunk.order, len(chunk.members)
    none = ((),) * len(order.program.method.parts)
    return Results(
        tuple([m.client for m in chunk.members]),
        tuple([m.train.count for m in chunk.members]),
        delta,
        stats,
        none,
        none,
        (order.epochs * steps_an_epoch(order, chunk.counts[0]),) * clients,
        (order.epochs * rows_an_epoch(order, chunk.counts[0]),) * clients,
        (order.epochs,) * clients,
        tuple(norms),
    )


def _epoch(compiled: Compiled, chunk: Chunk, epoch: int, given: Given, carry: Carry) -> None:
    order, value, bound = chunk.order, chunk.order.rates[epoch], None
    rate = known(value, given.n.dtype, given.n.device)
    for steps in all_steps(chunk.epoch(epoch), chunk.counts[0]):
        # chunks of one size do the same steps, so one of them looks them up for all
        key = (len(chunk.members), steps.shape[1], epoch)
        replay = chunk.shared.replays.get(key)
        if replay is None:
            batch, clock = Batch.of(*steps.like()), order.clock(epoch)
            call = StepCall(given, given.received, carry, batch, rate, clock)
            replay, bound = compiled.step(call, steps.first)
            chunk.shared.replays[key] = replay
        elif bound is None:
            bound = compiled.bound_to(given, given.received, carry, rate)
        replay.all_steps(*bound, steps if compiled.stacked else steps.alone(), value)


def all_steps(epoch: Epoch, rows: int) -> Iterator[Steps]:
    """Full batches, then what is left of the rows."""
    begin = 0
    for count, length in runs_of_steps(epoch.order, rows):
        yield epoch.steps(count, begin, length)
        begin += count * length
