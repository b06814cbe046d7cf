"""How an order is cut into chunks: from the order alone, so that bits depend on nothing else."""

from __future__ import annotations

from shoal.engines.api import Order
from shoal.engines.stacked.layout import Chunk

CACHE_BYTES = 4 * 2**20
SMALL_STEP = 1_000_000  # multiply-adds a step below which a second thread does not pay
LAID_OUT_AT_ONCE = 4_000_000  # row numbers, over all epochs, that one layout may hold


def chunks_of(
    order: Order, stacked: bool, cache_bytes: int, most: int | None = None
) -> list[Chunk]:
    """Consecutive members of an order, cut into chunks.

    ``most`` says how many clients make a chunk where that is not for their models to decide.
    """
    members = order.members
    size = most or (_fitting(order, cache_bytes) if stacked else 1)
    count = 1
    if not (stacked and _is_small(order, cache_bytes)):
        # as many chunks for one thread as for the other, of nearly the same size
        count = min(len(members), 2 * -(-len(members) // (2 * size)))
    if most:
        count = _level(len(members), count)
    cuts = [len(members) * i // count for i in range(count + 1)]
    spans = list(zip(cuts, cuts[1:], strict=False))
    if _even(order):
        whole = Chunk.of(order, members)
        return [whole.part(i, j) for i, j in spans]
    return [Chunk.of(order, members[i:j]) for i, j in spans]


def work_of(chunk: Chunk) -> int:
    """Multiply-adds of one step, about."""
    rows = chunk.order.batch or chunk.counts[0]
    return chunk.order.model.theta.numel() * rows * len(chunk.members)


def _fitting(order: Order, cache_bytes: int) -> int:
    theta = order.model.theta
    return max(1, cache_bytes // (theta.numel() * theta.element_size()))


def _is_small(order: Order, cache_bytes: int) -> bool:
    """Whether the whole cohort is one chunk that a second thread would not help."""
    rows, members = order.batch or len(order.members[0].train), len(order.members)
    work = order.model.theta.numel() * rows * members
    return work < SMALL_STEP and _fitting(order, cache_bytes) >= members


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
