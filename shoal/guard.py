"""Uploads that must not be averaged: non-finite, wrong-shaped, from nobody, or twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Results
from shoal.engines.sums import all_finite
from shoal.types import Rejected

NOT_FINITE = "not finite"  # a reason to turn an upload away
Bound = Callable[[Results], Mapping[int, str]]  # further reasons, by client


@dataclass(frozen=True)
class Guard:
    """Limits on what is accepted. ``quorum`` is a share of the cohort, or a number of clients."""

    enabled: bool = True
    quorum: float | int = 0.5
    retries: int = 3
    norm: float | None = None  # reject uploads longer than this
    bound: Bound | None = field(default=None, compare=False)  # of a real federation
    tell: Callable[[Rejected], None] | None = field(default=None, compare=False)  # at once

    def needed(self, cohort: int) -> int:
        """How many accepted uploads make a round of this cohort.

        >>> Guard(quorum=0.5).needed(5), Guard(quorum=2).needed(5), Guard(quorum=9).needed(5)
        (3, 2, 5)
        """
        wanted = self.quorum
        need = -(-cohort * wanted // 1) if isinstance(wanted, float) else wanted
        return max(1, min(cohort, int(need)))

    def screen(
        self, results: Results, expected: set[int], size: int, seen: set[int]
    ) -> tuple[list[int], list[float], list[Rejected]]:
        """Rows to keep, the norm of every kept row, and who was rejected and why."""
        clients, delta = results.clients, results.delta
        if delta.dim() != 2 or delta.shape[1] != size:
            shape = tuple(delta.shape[1:])
            return [], [], [Rejected(c, f"shape {shape}, expected ({size},)") for c in clients]
        known = results.norms is not None or not results.counted
        norms: Sequence[float] = results.norms or (
            torch.linalg.vector_norm(delta, dim=1).tolist()
            if known
            else [math.nan] * len(clients)  # a sum does not say how long each upload is
        )
        finite = _finite_rows(results)
        # their sum: the largest of several numbers may pass over one that is none
        if self.norm is None and self.bound is None and all(finite) and math.isfinite(sum(norms)):
            everybody = set(clients)  # the usual case, without a look at each client
            if len(everybody) == len(clients) and everybody <= expected and not everybody & seen:
                seen |= everybody
                return list(range(len(clients))), list(norms), []
        keep, kept_norms, rejected = [], [], []
        bounded = {} if self.bound is None else self.bound(results)
        for row, (client, norm) in enumerate(zip(clients, norms, strict=True)):
            fine = finite[row] and (norm < math.inf or not known)
            reason = self._reason(client, norm, fine, expected, seen) or bounded.get(client, "")
            if reason:
                rejected.append(Rejected(client, reason))
                if self.tell is not None:
                    self.tell(rejected[-1])
            else:
                seen.add(client)
                keep.append(row)
                kept_norms.append(norm)
        return keep, kept_norms, rejected

    def _reason(
        self, client: int, norm: float, finite: bool, expected: set[int], seen: set[int]
    ) -> str:
        if client not in expected:
            return "not in this round's cohort"
        if client in seen:
            return "sent twice"
        if self.enabled and not finite:
            return NOT_FINITE
        if self.norm is not None and norm > self.norm:
            return f"norm {norm:.3g} above the limit {self.norm:.3g}"
        return ""


def _finite_rows(results: Results) -> list[bool]:
    """Whether payloads, statistics and memories of each row are finite (deltas: by their norm)."""
    rows = len(results.clients)
    others: list[Tensor] = tree.leaves((results.payloads, results.memories))
    if results.stats.numel():
        others.append(results.stats)
    floating = [leaf for leaf in others if leaf.is_floating_point()]
    if results.counted or all_finite(tuple(floating)):
        return [True] * rows  # an engine counts finite uploads only
    fine = torch.ones(rows, dtype=torch.bool)
    for leaf in floating:
        if leaf.numel():
            fine &= leaf.reshape(rows, -1).isfinite().all(1).cpu()
    return [bool(f) for f in fine.tolist()]
