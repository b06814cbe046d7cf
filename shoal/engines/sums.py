"""Sums of what clients send, in the order of the chunks, whoever computes them.

A sum of floating-point numbers depends on its order in the last bits. Here a chunk is added when
all chunks before it have been, so the bits are the same for any number of threads. One vector of
the model's size is held, and one for every chunk that is done before its turn: an engine has only
a few chunks under way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.part import Part
from shoal.tree import Tree
from shoal.types import Reduction

FEW = 100  # numbers up to which Python's sum is cheaper than torch's


class Sums(NamedTuple):
    """What some clients send, added up, each as often as it counts."""

    delta: Tensor  # [P]
    stats: Tensor  # [S]
    payloads: tuple[Tree, ...]  # of parts whose payloads are added up; the empty tuple for others
    weight: float = 1.0  # how often ``delta`` counts


class RunningSums:
    """The sums of all chunks. Threads may share it.

    A chunk may bring nothing (its clients are judged one by one).
    """

    def __init__(self) -> None:
        self.total: Sums | None = None
        self._next = 0
        self._waiting: dict[int, Sums | None] = {}
        self._lock = Lock()

    def put(self, chunk: int, sums: Sums | None) -> None:
        """Add a chunk's sums, whose memory is free again afterwards, and those that waited."""
        with self._lock:
            if chunk > self._next and sums is not None:
                sums = sums._replace(delta=sums.delta.clone())  # its memory is used again
            self._waiting[chunk] = sums
            while self._next in self._waiting:
                self._add(self._waiting.pop(self._next))
                self._next += 1

    def _add(self, more: Sums | None) -> None:
        if more is None:
            return
        if self.total is None:
            self.total = more._replace(delta=more.delta * more.weight, weight=1.0)
            return
        self.total.delta.add_(more.delta, alpha=more.weight)
        pairs = zip(tree.leaves(self.total[1:3]), tree.leaves(more[1:3]), strict=True)
        for total, own in pairs:
            total.add_(own)


def weighted_sum(rows: Tensor, weights: Sequence[float] | None) -> Tensor:
    """The sum of rows, each as often as it counts (None: once), in memory of its own."""
    if weights is None or all(weight == 1.0 for weight in weights):
        return rows[0].clone() if len(rows) == 1 else rows.sum(0)
    if len(rows) == 1:
        return rows[0] * weights[0]
    own = torch.tensor(weights, dtype=rows.dtype, device=rows.device)
    found: Tensor = torch.mv(rows.t(), own) if rows.dim() == 2 else torch.tensordot(own, rows, 1)
    return found


def payload_sums(
    parts: Sequence[Part], payloads: tuple[Tree, ...], weights: Sequence[float] | None
) -> tuple[Tree, ...]:
    """Payloads added up as their parts say; the empty tuple where rows are kept apart."""
    found: list[Tree] = []
    for part, payload in zip(parts, payloads, strict=True):
        if not tree.leaves(payload) or part.reduction is Reduction.STACK:
            found.append(())
            continue
        own = weights if part.reduction is Reduction.MEAN else None
        found.append(tree.apply(partial(weighted_sum, weights=own), payload))
    return tuple(found)


def all_finite(values: Tree) -> bool:
    """Whether every number is finite; a sum passes over nothing, and costs less than a look at
    each number."""
    for leaf in tree.leaves(values):
        if leaf.is_floating_point() and leaf.numel():
            few = leaf.numel() <= FEW
            if not math.isfinite(sum(leaf.flatten().tolist()) if few else float(leaf.sum())):
                return False
    return True
