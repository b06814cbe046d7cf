"""An order cut into shares, each the work of one worker at a time.

The cuts follow from the order alone, never from the number of workers: a share is trained as a
stack, and a stack's size may change the last bit.
"""

from __future__ import annotations

from shoal.engines.base import Member, Order

WORTH = 20_000_000  # multiply-adds below which a message costs more than it saves
CACHE_BYTES = 4 * 2**20  # of the models of a stack
SHARED_WEIGHTS = 64  # a convolution uses a weight about so often for one sample


def work_of(order: Order, member: Member) -> int:
    """About how many multiply-adds a member's round takes."""
    rows = len(member.train) * order.epochs
    if member.steps is not None:
        rows = min(rows, member.steps * (order.batch or len(member.train)))
    reuse = 1 if order.program.task.stackable else SHARED_WEIGHTS
    return max(1, rows) * order.model.theta.numel() * reuse


def shares_of(order: Order) -> list[tuple[Member, ...]]:
    """Consecutive members: enough shares to balance workers, each worth a message."""
    members = order.members
    if not members:
        return []
    mean = max(1, sum(work_of(order, m) for m in members) // len(members))
    size = -(-WORTH // mean)
    if order.program.task.stackable and not order.program.method.eager_reason:
        theta = order.model.theta
        cached = max(1, CACHE_BYTES // (theta.numel() * theta.element_size()))
        size = max(size, min(cached, -(-len(members) // 8)))
    count = -(-len(members) // size)
    if count > 1:  # a multiple of four comes out even on the usual numbers of workers
        count = min(len(members), 4 * -(-count // 4))
    cuts = [len(members) * i // count for i in range(count + 1)]
    return [members[i:j] for i, j in zip(cuts, cuts[1:], strict=False)]
