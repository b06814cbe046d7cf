"""Chunks of the plain kind: start at the model, equally many steps, send the change of the model.

Most rounds are made of these, so they get the shortest way: one buffer a thread for the clients'
models, which stays in the cache from chunk to chunk, and of the deltas only the norms and the sum
where nobody asks for more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from shoal.engines.api import Results
from shoal.engines.batches import batch_rows, steps_an_epoch
from shoal.engines.client_round import Carry, Given
from shoal.engines.compiler.emit_torchscript import Steps
from shoal.engines.numbers import known
from shoal.engines.stacked.active_clients import weighted_sum
from shoal.engines.stacked.compiled import Compiled
from shoal.engines.stacked.epoch import Epoch
from shoal.engines.stacked.layout import Chunk
from shoal.types import Batch

_SMALL = 2**15  # numbers that are copied before another way has begun


class Rooms(threading.local):
    """A thread's own buffers for stacked models, one for each shape."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def of(self, clients: int, like: Tensor) -> Tensor:
        key = (clients, like.numel(), like.dtype)
        if key not in self._rooms:
            self._rooms[key] = like.new_empty(clients, like.numel())
        return self._rooms[key]


ROOMS = Rooms()


def is_plain(compiled: Compiled, chunk: Chunk) -> bool:
    """Whether :func:`run_plain` may run a chunk."""
    order = chunk.order
    return (
        compiled.plain
        and chunk.even
        and order.uniform is not None
        and len(chunk.members) > 1
        and not order.model.stats.numel()
        and (order.pad == 0 or chunk.counts[0] % batch_rows(order, chunk.counts[0]) == 0)
    )


def run_plain(compiled: Compiled, chunk: Chunk) -> Results:
    """The round of such a chunk."""
    order, clients = chunk.order, len(chunk.members)
    theta, counts = order.model.theta, [m.train.count for m in chunk.members]
    none = ((),) * len(order.program.method.parts)
    x = ROOMS.of(clients, theta) if order.summed else theta.new_empty(clients, theta.numel())
    give_all(theta, x)
    stats = order.model.stats.expand(clients, -1)
    carry = Carry(x, stats, none, (), theta.new_zeros(clients))
    number = known(tuple(counts), theta.dtype, theta.device)
    given = Given(theta, order.initial, order.model.stats, number, none, order.sent)
    for epoch in range(order.epochs):
        _epoch(compiled, chunk, epoch, given, carry)
    x.sub_(theta)
    norms: list[float] = torch.linalg.vector_norm(x, dim=1).tolist()
    total = weighted_sum(x, counts, bool(order.uniform))
    if order.summed:
        # somebody will have to be left out of a sum that is not finite
        x = x.clone() if not math.isfinite(sum(norms)) else theta.new_empty(0, theta.numel())
    return plain_results(chunk, counts, x, norms, total)


def give_all(vector: Tensor, clients: Tensor) -> None:
    """Write a vector into the row of every client."""
    if clients.numel() < _SMALL:
        clients.copy_(vector)
    else:
        torch.mul(vector.expand_as(clients), 1, out=clients)  # twice as fast as a broadcast copy


def plain_results(
    chunk: Chunk, counts: list[float], delta: Tensor, norms: list[float], total: Tensor
) -> Results:
    """Of clients that all took the same steps and sent nothing but the change of the model."""
    order, clients = chunk.order, len(chunk.members)
    none = ((),) * len(order.program.method.parts)
    return Results(
        tuple([m.client for m in chunk.members]),
        tuple(counts),
        delta,
        order.model.stats.expand(clients, -1),
        none,
        none,
        (order.epochs * steps_an_epoch(order, chunk.counts[0]),) * clients,
        (order.epochs * chunk.counts[0],) * clients,
        (order.epochs,) * clients,
        tuple(norms),
        total,
    )


def _epoch(compiled: Compiled, chunk: Chunk, epoch: int, given: Given, carry: Carry) -> None:
    order, value = chunk.order, chunk.order.rates[epoch]
    rate, clock = known(value, given.n.dtype, given.n.device), order.clock(epoch)
    for steps in all_steps(chunk.epoch(epoch), chunk.counts[0]):
        real: Callable[[Steps], Callable[[], Batch]]
        real = lambda some: lambda: Batch(*next(some.batches()))  # noqa: E731
        replay, flat, fixed = compiled.step(
            given, given.received, carry, Batch(*steps.like()), rate, (), clock, real(steps)
        )
        replay.all_steps(flat, fixed, steps, value)


def all_steps(epoch: Epoch, rows: int) -> Iterator[Steps]:
    """Full batches, then what is left of the rows."""
    length = batch_rows(epoch.order, rows)
    count, rest = divmod(rows, length)
    if count:
        yield epoch.steps(count)
    if rest:
        yield epoch.steps(1, count * length, rest)
