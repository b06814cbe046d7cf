"""A sum of uploads as the results of an engine."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Order, Results
from shoal.flower.frames import Done
from shoal.types import Reduction


def shared_out(order: Order, done: dict[int, Done], sums: list[Tensor], ticket: int) -> Results:
    """Every member's row is its share of the sum: rows added up as uploads are give the sum again.

    Nothing in a row is the member's own but its weight and its work, which members send openly.
    """
    clients = tuple(m.client for m in order.members if m.client in done)
    frames, like = [done[c] for c in clients], order.model.theta
    counts = tuple(f.count for f in frames)
    weights = float(len(clients)) if order.uniform else sum(counts)

    def rows(total: Tensor, over: float) -> Tensor:
        return (total / over).to(like.dtype).expand(len(clients), *total.shape)

    rest, payloads = iter(sums[2:]), []
    for part, payload in zip(order.program.method.parts, frames[0].payloads, strict=True):
        over = weights if part.reduction is Reduction.MEAN else float(len(clients))
        leaves = [rows(next(rest), over) for _ in tree.leaves(payload)]
        payloads.append(tree.rebuild(payload, leaves))
    handle = torch.full((len(clients), 1), ticket)
    parts = order.program.method.parts
    return Results(
        clients,
        counts,
        rows(sums[0], weights),
        rows(sums[1], weights),
        tuple(payloads),
        tuple(handle if part.fills("memory") else () for part in parts),
        tuple(f.steps for f in frames),
        tuple(f.samples for f in frames),
        tuple(f.epochs for f in frames),
    )
