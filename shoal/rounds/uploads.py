"""Which uploads count, and their running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import Reduction, Rejected
from shoal.engines.api import Results, Scattered, Sums, all_finite, payload_sums
from shoal.methods.method import Method
from shoal.methods.view import Uploads

# ---- guard ---------------------------------------------------------------------------------------
# Uploads that must not be averaged: non-finite, wrong-shaped, from nobody, or twice.

NOT_FINITE = "not finite"  # a reason to turn an upload away
Bound = Callable[[Results], Mapping[int, str]]  # further reasons, by client


@dataclass(frozen=True)
class Guard:
    """Limits on what is accepted. ``quorum`` is a share of the cohort, or a number of clients."""

    reject_non_finite: bool = True
    quorum: float | int = 0.5
    retries: int = 3
    max_norm: float | None = None  # reject uploads longer than this
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
        plain = self.max_norm is None and self.bound is None
        if plain and all(finite) and math.isfinite(sum(norms)):
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
        if self.reject_non_finite and not finite:
            return NOT_FINITE
        if self.max_norm is not None and norm > self.max_norm:
            return f"norm {norm:.3g} above the limit {self.max_norm:.3g}"
        return ""


def _finite_rows(results: Results) -> list[bool]:
    """Whether payloads, statistics and memories of each row are finite (deltas: by their norm)."""
    rows = len(results.clients)
    if results.counted:
        return [True] * rows  # an engine counts finite uploads only
    others: list[Tensor] = tree.leaves((results.payloads, results.memories))
    if results.stats.numel():
        others.append(results.stats)
    floating = [leaf for leaf in others if leaf.is_floating_point()]
    if all_finite(tuple(floating)):
        return [True] * rows
    fine = torch.ones(rows, dtype=torch.bool)
    for leaf in floating:
        if leaf.numel():
            fine &= leaf.reshape(rows, -1).isfinite().all(1).cpu()
    return [bool(f) for f in fine.tolist()]


# ---- accumulate ----------------------------------------------------------------------------------
# Running sums over uploads, in client order, so that nothing holds a list of models.


class UploadSums:
    """Adds rows in client order, or takes the sum that an engine has made along the tree of its
    chunks (:mod:`shoal.engines.api`), so neither threads nor the order of arrival change a bit."""

    def __init__(self, method: Method, size: int, stats: int, like: Tensor) -> None:
        self.method = method
        self._delta: Tensor | None = None  # nothing yet: a model may be large
        self._size, self._like = size, like
        self.stats = torch.zeros(stats, dtype=like.dtype, device=like.device)
        self.total = 0.0
        self.clients: list[int] = []
        self.weights: list[float] = []
        self.norms: list[float] = []
        self.steps = self.samples = 0
        self.epochs: list[int] = []
        self.each: list[tuple[int, int]] = []  # steps and samples of every client
        self.payloads: list[Tree | None] = [None] * len(method.parts)
        self.rows: list[Tensor] = []
        self.keep_rows = any(p.individual_uploads for p in method.parts)

    def add(self, results: Results, keep: list[int], norms: list[float], uniform: bool) -> None:
        """Add the rows to keep. What an engine has counted is in a sum that comes with the last
        results; the guard, who sees the same numbers, keeps all of it."""
        everybody = len(keep) == len(results.clients)
        weights = [1.0] * len(keep) if uniform else [results.counts[row] for row in keep]
        if results.sums is not None:
            self._add_sums(results.sums)
        if results.counted:
            if not everybody:
                raise RuntimeError("an upload was counted by the engine and turned away later")
        else:
            for row, weight in zip(keep, weights, strict=True):
                self._add_row(results, row, weight)
        if self.keep_rows:
            self.rows += [results.delta[row].clone() for row in keep]
        for weight in weights:  # one by one: a sum of sums may differ in the last bit
            self.total += weight
        self._note(results if everybody else _rows(results, keep))
        self.weights += weights
        self.norms += norms
        self._add_payloads(results, keep, uniform)

    @property
    def delta(self) -> Tensor:
        """The weighted sum of the changes so far."""
        if self._delta is None:
            self._delta = self._like.new_zeros(self._size)
        return self._delta

    def _add_sums(self, sums: Sums) -> None:
        self._delta = sums.delta if self._delta is None else self._delta.add_(sums.delta)
        self.stats.add_(sums.stats)
        for i, payload in enumerate(sums.payloads):
            if tree.leaves(payload):
                self._add_payload(i, payload)

    def _add_payload(self, index: int, more: Tree) -> None:
        total = self.payloads[index]
        if total is None:
            self.payloads[index] = tree.clone(more)
            return
        for own, new in zip(tree.leaves(total), tree.leaves(more), strict=True):
            own.add_(new)

    def _add_row(self, results: Results, row: int, weight: float) -> None:
        if self.stats.numel():
            self.stats.add_(results.stats[row], alpha=weight)
        if isinstance(results.delta, Scattered):
            results.delta.add_to(self.delta, weight)
        else:
            self.delta.add_(results.delta[row], alpha=weight)

    def _note(self, results: Results) -> None:
        """Who was added and what they did."""
        self.clients += results.clients
        self.steps += sum(results.steps)
        self.samples += sum(results.samples)
        self.epochs += results.epochs
        self.each += zip(results.steps, results.samples, strict=True)

    def _add_payloads(self, results: Results, keep: list[int], uniform: bool) -> None:
        for i, part in enumerate(self.method.parts):
            payload = results.payloads[i]
            leaves = tree.leaves(payload)
            if not leaves or not keep:
                continue
            if part.reduction is Reduction.STACK:
                # copies either way: an engine may use its memory again for the next clients
                if len(keep) == len(results.clients):
                    kept = [leaf.clone() for leaf in leaves]
                else:
                    chosen = torch.tensor(keep, device=leaves[0].device)
                    kept = [leaf.index_select(0, chosen) for leaf in leaves]
                self.payloads[i] = (*(self.payloads[i] or ()), tree.rebuild(payload, kept))
                continue
            if results.counted:
                continue  # it is in the sums
            weights = None
            if part.reduction is Reduction.MEAN and not uniform:
                weights = [results.counts[row] for row in keep]
            chosen = tree.apply(lambda leaf: leaf[keep], payload)
            self._add_payload(i, payload_sums([part], (chosen,), weights)[0])

    def work(self) -> tuple[Sequence[float], ...]:
        """Clients, steps, samples, epochs and norms of the rows that were added, in columns."""
        return self.clients, *zip(*self.each, strict=True), self.epochs, self.norms

    def payload(self, index: int) -> Tree:
        """The reduced payload of one part; the empty tuple if nothing came."""
        total = self.payloads[index]
        if total is None:
            return ()
        reduction = self.method.parts[index].reduction
        if reduction is Reduction.STACK:
            return tree.join(total)
        if reduction is Reduction.MEAN:
            return tree.apply(lambda leaf: leaf / self.total, total)
        return total

    def uploads(self, stats: Tensor) -> Uploads:
        """Everything but the payload, which is each part's own; ``stats``: their mean. To be asked
        once: the sum becomes the mean where it is, since a model may be large."""
        total, summed = self.total, self.delta
        del self._delta  # nothing can be added any more
        return Uploads(
            clients=tuple(self.clients),
            weights=tuple([w / total for w in self.weights]),
            delta=summed / total if summed.is_inference() else summed.div_(total),
            stacked=torch.stack(self.rows) if self.keep_rows else None,
            norms=tuple(self.norms),
            stats=stats,
        )


def _rows(results: Results, keep: list[int]) -> Results:
    """The plain figures of some clients; tensors stay as they are."""
    return results._replace(
        clients=tuple(results.clients[row] for row in keep),
        steps=tuple(results.steps[row] for row in keep),
        samples=tuple(results.samples[row] for row in keep),
        epochs=tuple(results.epochs[row] for row in keep),
    )
