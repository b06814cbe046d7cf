"""Which pools of data the workers have: those that were there when they were forked."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor

from shoal.engines.base import Order
from shoal.types import Pool

WORTH_KEEPING = 2**16  # bytes; a smaller pool travels with each share
RENEWALS = 8  # times that workers are forked again for a new pool


class Pools:
    """Numbers for pools that workers have inherited, and a look-out for ones they lack.

    A pool that is seen in two orders is there to stay: the workers are forked again, and have it.
    One that is made for a single order (blocks of a client's past) travels with its share.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._seen: dict[int, weakref.ref[Tensor]] = {}
        self._renewals = 0

    def number(self, pool: Pool) -> int | None:
        known = self._numbers.get(id(pool.x))
        return known[1] if known is not None and known[0]() is pool.x else None

    def lacking(self, order: Order) -> bool:
        """Whether workers should be forked again for this order's pools."""
        lasting = False
        seen: dict[int, weakref.ref[Tensor]] = {}
        for pool in _pools(order):
            if self.number(pool) is None:
                before = self._seen.get(id(pool.x))
                lasting = lasting or (before is not None and before() is pool.x)
                seen[id(pool.x)] = weakref.ref(pool.x)
        self._seen = seen
        if lasting:
            self._renewals += 1
        return lasting and self._renewals <= RENEWALS

    def inherited(self, order: Order) -> list[Pool]:
        """The pools that workers forked now will have, by number."""
        pools = {id(pool.x): pool for pool in _pools(order)}
        self._numbers = {
            key: (weakref.ref(pool.x), number) for number, (key, pool) in enumerate(pools.items())
        }
        return list(pools.values())


def _pools(order: Order) -> Iterator[Pool]:
    for member in order.members:
        for data in (member.train, member.validation):
            if data is not None and data.pool.x.nbytes >= WORTH_KEEPING:
                yield data.pool
