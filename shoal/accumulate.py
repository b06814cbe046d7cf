"""Running sums over uploads, in client order, so that nothing holds a list of models."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.base import Results
from shoal.method import Method
from shoal.tree import Tree
from shoal.types import Reduction
from shoal.view import Uploads


class Accumulator:
    """Adds rows one after another: chunking and order of arrival change no bit."""

    def __init__(self, method: Method, size: int, stats: int, like: Tensor) -> None:
        self.method = method
        self.delta = torch.zeros(size, dtype=like.dtype, device=like.device)
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
        for row, norm in zip(keep, norms, strict=True):
            weight = 1.0 if uniform else results.counts[row]
            self.delta.add_(results.delta[row], alpha=weight)
            if self.stats.numel():
                self.stats.add_(results.stats[row], alpha=weight)
            if self.keep_rows:
                self.rows.append(results.delta[row].clone())
            self.total += weight
            self.clients.append(results.clients[row])
            self.weights.append(weight)
            self.norms.append(norm)
            self.steps += results.steps[row]
            self.samples += results.samples[row]
            self.epochs.append(results.epochs[row])
            self.each.append((results.steps[row], results.samples[row]))
        self._add_payloads(results, keep, uniform)

    def _add_payloads(self, results: Results, keep: list[int], uniform: bool) -> None:
        for i, part in enumerate(self.method.parts):
            payload = results.payloads[i]
            leaves = tree.leaves(payload)
            if not leaves or not keep:
                continue
            if part.reduction is Reduction.STACK:
                own = [tree.clone(tree.row(payload, row)) for row in keep]
                self.payloads[i] = (*(self.payloads[i] or ()), *own)
                continue
            if self.payloads[i] is None:
                self.payloads[i] = tree.apply(lambda leaf: torch.zeros_like(leaf[0]), payload)
            weighted = part.reduction is Reduction.MEAN and not uniform
            for total, leaf in zip(tree.leaves(self.payloads[i]), leaves, strict=True):
                for row in keep:
                    total.add_(leaf[row], alpha=results.counts[row] if weighted else 1.0)

    def work(self) -> list[tuple[int, int, int, int, float]]:
        """Client, steps, samples, epochs and norm of every row that was added."""
        rows = zip(self.clients, self.each, self.epochs, self.norms, strict=True)
        return [(client, *each, epochs, norm) for client, each, epochs, norm in rows]

    def payload(self, index: int) -> Tree:
        """The reduced payload of one part; the empty tuple if nothing came."""
        total = self.payloads[index]
        if total is None:
            return ()
        reduction = self.method.parts[index].reduction
        if reduction is Reduction.STACK:
            return tree.stack(total)
        if reduction is Reduction.MEAN:
            return tree.apply(lambda leaf: leaf / self.total, total)
        return total

    def uploads(self) -> Uploads:
        """Everything but the payload, which is each part's own."""
        return Uploads(
            clients=tuple(self.clients),
            weights=tuple(w / self.total for w in self.weights),
            delta=self.delta / self.total,
            stacked=torch.stack(self.rows) if self.keep_rows else None,
            norms=tuple(self.norms),
            mean_steps=self.steps / max(1, len(self.clients)),
        )
