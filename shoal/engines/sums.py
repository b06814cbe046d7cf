"""Sums of what clients send, along one fixed tree, whoever computes them.

A sum of floating-point numbers depends on its order in the last bits. Here the order follows from
the number of chunks alone: neighbours are added, then neighbours of those sums, and so on. Threads
(or machines) may compute any branch at any time; the bits at the root are always the same.
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


class SumTree:
    """The tree over so many chunks. Threads may share it.

    A chunk may bring nothing (its clients are judged one by one); then its neighbour's sum goes on
    as it is.
    """

    def __init__(self, chunks: int) -> None:
        self._widths = [chunks]  # nodes per level, the leaves first
        while self._widths[-1] > 1:
            self._widths.append(-(-self._widths[-1] // 2))
        self._waiting: dict[tuple[int, int], Sums | None] = {}
        self._lock = Lock()

    def put(self, chunk: int, sums: Sums | None) -> None:
        """Add a chunk's sums; whoever brings the second of two neighbours adds them up."""
        level, place, found = 0, chunk, sums
        while level < len(self._widths) - 1:
            if place ^ 1 < self._widths[level]:
                with self._lock:
                    if (level, place ^ 1) not in self._waiting:
                        self._waiting[level, place] = found
                        return
                    other = self._waiting.pop((level, place ^ 1))
                left, right = (found, other) if place % 2 == 0 else (other, found)
                found = _added(left, right)
            level, place = level + 1, place // 2
        with self._lock:
            self._waiting[level, place] = found

    def total(self) -> Sums | None:
        """The sum over all chunks, once all have brought theirs; None if none brought anything."""
        return self._waiting[len(self._widths) - 1, 0]


def _added(left: Sums | None, right: Sums | None) -> Sums | None:
    """In the memory of the left one, which nobody else has."""
    if left is None or right is None:
        return right if left is None else left
    for total, more in zip(tree.leaves(left), tree.leaves(right), strict=True):
        total.add_(more)
    return left


def weighted_sum(rows: Tensor, weights: Sequence[float] | None) -> Tensor:
    """The sum of rows, each as often as it counts (None: once), in memory of its own."""
    if not rows.numel():
        return rows.new_zeros(rows.shape[1:])
    alone = rows.shape[0] == 1
    if weights is None or set(weights) == {1.0}:
        return rows[0].clone() if alone else rows.sum(0)
    if alone:
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
