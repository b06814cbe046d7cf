"""How orders are cut into chunks: from the orders alone, so that bits depend on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.engines.base import Order
from shoal.engines.chunk import Chunk, Seat

CACHE_BYTES = 4 * 2**20
SMALL_STEP = 1_000_000  # multiply-adds a step below which a second thread does not pay
LAID_OUT_AT_ONCE = 4_000_000  # row numbers, over all epochs, that one layout may hold


class Cut(NamedTuple):
    """A chunk, and the number of each of its orders among all of them."""

    numbers: tuple[int, ...]
    chunk: Chunk


def cuts_of(
    orders: Sequence[Order], stacked: bool, cache_bytes: int, most: int | None = None
) -> list[Cut]:
    """Consecutive members; cohorts that fill no chunk of their own share one, a few at a time.

    ``most`` says how many clients make a chunk where that is not for their models to decide.
    """
    if stacked and len(orders) > 1 and all(_is_small(o, cache_bytes) for o in orders):
        seats = [Seat(k, member) for k, order in enumerate(orders) for member in order.members]
        if len({_samples(s) for s in seats}) == 1:
            return [Cut(tuple(range(len(orders))), Chunk.of(orders, seats))]
    found: list[Cut] = []
    for number, order in enumerate(orders):
        found += [Cut((number,), chunk) for chunk in _of_one(order, stacked, cache_bytes, most)]
    return found


def _samples(seat: Seat) -> tuple[object, ...]:
    """Where a member's samples are; runs may have views of their own of the same memory."""
    x = seat.member.train.pool.x
    return (x.data_ptr(), x.shape, x.stride(), x.dtype)


def work_of(chunk: Chunk) -> int:
    """Multiply-adds of one step, about."""
    rows = chunk.order.batch or chunk.counts[0]
    return chunk.order.model.theta.numel() * rows * len(chunk.seats)


def _fitting(order: Order, cache_bytes: int) -> int:
    theta = order.model.theta
    return max(1, cache_bytes // (theta.numel() * theta.element_size()))


def _is_small(order: Order, cache_bytes: int) -> bool:
    """Whether the whole cohort is one chunk that a second thread would not help."""
    rows, members = order.batch or len(order.members[0].train), len(order.members)
    work = order.model.theta.numel() * rows * members
    return work < SMALL_STEP and _fitting(order, cache_bytes) >= members


def _of_one(order: Order, stacked: bool, cache_bytes: int, most: int | None) -> list[Chunk]:
    seats = [Seat(0, member) for member in order.members]
    size = most or (_fitting(order, cache_bytes) if stacked else 1)
    count = 1
    if not (stacked and _is_small(order, cache_bytes)):
        # as many chunks for one thread as for the other, of nearly the same size
        count = min(len(seats), 2 * -(-len(seats) // (2 * size)))
    if most:
        count = _level(len(seats), count)
    cuts = [len(seats) * i // count for i in range(count + 1)]
    spans = list(zip(cuts, cuts[1:], strict=False))
    if _even(order):
        whole = Chunk.of((order,), seats)
        return [whole.part(i, j) for i, j in spans]
    return [Chunk.of((order,), seats[i:j]) for i, j in spans]


def _level(clients: int, count: int) -> int:
    """Up to twice as many chunks if they are then all of one size, which is one trace less.

    >>> _level(1000, 12), _level(997, 12)
    (20, 12)
    """
    return next((n for n in range(count, 2 * count, 2) if clients % n == 0), count)


def _even(order: Order) -> bool:
    """Whether all clients can be laid out in one go: equally many rows, no caps, not too many."""
    members = order.members
    rows, pool = len(members[0].train), members[0].train.pool.x
    same = all(
        len(m.train) == rows
        and m.steps is None
        and m.train.pool.x is pool
        and m.train.weight is None
        for m in members
    )
    return same and rows * len(members) * order.epochs <= LAID_OUT_AT_ONCE
