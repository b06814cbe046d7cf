"""Members with pools of their own, made ready to be stacked: a stack gathers from one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from shoal.engines.base import Order
from shoal.types import ClientData, Pool


def in_one_pool(order: Order) -> Order:
    """The same order with all training rows in one pool, and all validation rows in one.

    Nothing is copied where that is so already, as in most worlds.
    """
    members = order.members
    train = _pooled([m.train for m in members])
    held = [m.validation for m in members if m.validation is not None]
    validation = _pooled(held)
    if train is None and validation is None:
        return order
    trains = iter(train or [m.train for m in members])
    helds = iter(validation or held)
    moved = (
        replace(m, train=next(trains), validation=None if m.validation is None else next(helds))
        for m in members
    )
    return replace(order, members=tuple(moved))


def _pooled(data: Sequence[ClientData]) -> list[ClientData] | None:
    """Rows copied into one pool; None if they are in one."""
    if len({id(d.pool.x) for d in data}) < 2:
        return None
    x = torch.cat([d.pool.x.index_select(0, d.rows) for d in data])
    pool = Pool(x, torch.cat([d.labels for d in data]))
    out, begin = [], 0
    for d in data:
        rows = torch.arange(begin, begin + len(d), device=d.rows.device)
        out.append(replace(d, pool=pool, rows=rows))
        begin += len(d)
    return out
