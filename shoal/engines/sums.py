"""Sums of what clients send, along one fixed tree, whoever computes them.

A sum of floating-point numbers depends on its order in the last bits. Here the order follows from
the number of chunks alone: ``FAN`` neighbours are added one after another into one vector, then
``FAN`` of those sums, and so on. Threads (or machines) may compute any branch at any time; the bits
at the root are always the same. A round in one thread holds one vector per level of the tree.
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
from shoal.engines.numbers import known
from shoal.part import Part
from shoal.tree import Tree
from shoal.types import Reduction

FAN = 4  # neighbours that are added into one sum
FEW = 100  # numbers up to which Python's sum is cheaper than torch's


class Sums(NamedTuple):
    """What some clients send, added up, each as often as it counts."""

    delta: Tensor  # [P]
    stats: Tensor  # [S]
    payloads: tuple[Tree, ...]  # of parts whose payloads are added up; the empty tuple for others
    # ``delta`` is one client's, whose memory is used again, and counts so often; None: it is a sum
    lent: float | None = None


class SumTree:
    """The tree over so many chunks. Threads may share it.

    A chunk may bring nothing (its clients are judged one by one).
    """

    def __init__(self, chunks: int) -> None:
        self.total: Sums | None = None  # over all chunks, once all have brought theirs
        self._levels: list[list[_Branch]] = []
        while chunks > 1:
            sizes = [min(FAN, chunks - first) for first in range(0, chunks, FAN)]
            self._levels.append([_Branch(size) for size in sizes])
            chunks = len(sizes)

    def put(self, chunk: int, sums: Sums | None) -> None:
        """Add a chunk's sums; what it lent is its own again afterwards."""
        place, found = chunk, sums
        for level in self._levels:
            branch = level[place // FAN]
            if not branch.add(place % FAN, found):
                return
            place, found = place // FAN, branch.total
        self.total = None if found is None else _owned(found)


class _Branch:
    """The sum of a few neighbours, each added when those before it have been."""

    def __init__(self, size: int) -> None:
        self.total: Sums | None = None
        self._size, self._next = size, 0
        self._early: dict[int, Sums | None] = {}
        self._lock = Lock()

    def add(self, place: int, sums: Sums | None) -> bool:
        """Add what one of them brings; whether it was the last that was missing."""
        with self._lock:
            if place > self._next and sums is not None and sums.lent is not None:
                # a copy, not yet multiplied: rounding must not depend on who comes early
                sums = sums._replace(delta=sums.delta.clone())
            self._early[place] = sums
            while self._next in self._early:
                self._take(self._early.pop(self._next))
                self._next += 1
            return self._next == self._size

    def _take(self, more: Sums | None) -> None:
        if more is None or self.total is None:
            self.total = self.total if more is None else _owned(more)
            return
        self.total.delta.add_(more.delta, alpha=1.0 if more.lent is None else more.lent)
        for one, other in zip(tree.leaves(self.total[1:3]), tree.leaves(more[1:3]), strict=True):
            one.add_(other)


def _owned(sums: Sums) -> Sums:
    """In memory of its own, and counted once."""
    return sums if sums.lent is None else sums._replace(delta=sums.delta * sums.lent, lent=None)


def weighted_sum(rows: Tensor, weights: Sequence[float] | None) -> Tensor:
    """The sum of rows, each as often as it counts (None: once), in memory of its own."""
    if not rows.numel():
        return rows.new_zeros(rows.shape[1:])
    alone = rows.shape[0] == 1
    if weights is None or set(weights) == {1.0}:
        return rows[0].clone() if alone else rows.sum(0)
    if alone:
        return rows[0] * weights[0]
    own = known(tuple(weights), rows.dtype, rows.device)
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
