"""Running sums over uploads, in client order, so that nothing holds a list of models."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Results
from shoal.engines.sparse_rows import Scattered
from shoal.method import Method
from shoal.tree import Tree
from shoal.types import Reduction
from shoal.view import Uploads


class Accumulator:
    """Adds rows in client order, or an engine's own sums of a chunk in the order of the chunks.

    Chunks follow from the order alone, so neither threads nor the order of arrival change a bit.
    """

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
        """Add the rows to keep; a chunk that is kept whole brings its own sum."""
        everybody = len(keep) == len(results.clients)
        weights = [1.0] * len(keep) if uniform else [results.counts[row] for row in keep]
        if everybody and results.total is not None:
            self.delta.add_(results.total)
        else:
            for row, weight in zip(keep, weights, strict=True):
                self._add_row(results, row, weight)
        if self.stats.numel():
            for row, weight in zip(keep, weights, strict=True):
                self.stats.add_(results.stats[row], alpha=weight)
        if self.keep_rows:
            self.rows += [results.delta[row].clone() for row in keep]
        for weight in weights:  # one by one: a sum of sums may differ in the last bit
            self.total += weight
        self._note(results if everybody else _rows(results, keep))
        self.weights += weights
        self.norms += norms
        self._add_payloads(results, keep, uniform)

    def _add_row(self, results: Results, row: int, weight: float) -> None:
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
            if self.payloads[i] is None:
                self.payloads[i] = tree.apply(lambda leaf: torch.zeros_like(leaf[0]), payload)
            weighted = part.reduction is Reduction.MEAN and not uniform
            weights = [results.counts[row] if weighted else 1.0 for row in keep]
            for total, leaf in zip(tree.leaves(self.payloads[i]), leaves, strict=True):
                total.add_(_weighted(leaf, keep, weights))

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
            return tree.join(total)
        if reduction is Reduction.MEAN:
            return tree.apply(lambda leaf: leaf / self.total, total)
        return total

    def uploads(self) -> Uploads:
        """Everything but the payload, which is each part's own."""
        total = self.total
        return Uploads(
            clients=tuple(self.clients),
            weights=tuple([w / total for w in self.weights]),
            delta=self.delta / total,
            stacked=torch.stack(self.rows) if self.keep_rows else None,
            norms=tuple(self.norms),
            mean_steps=self.steps / max(1, len(self.clients)),
        )


def _weighted(stack: Tensor, keep: list[int], weights: list[float]) -> Tensor:
    """The sum of some rows of a stack, each as often as it counts."""
    rows = stack if len(keep) == len(stack) else stack[keep]
    if all(weight == 1.0 for weight in weights):
        return rows.sum(0)
    own = torch.tensor(weights, dtype=stack.dtype, device=stack.device)
    found: Tensor = torch.tensordot(own, rows, 1)
    return found


def _rows(results: Results, keep: list[int]) -> Results:
    """The plain figures of some clients; tensors stay as they are."""
    return results._replace(
        clients=tuple(results.clients[row] for row in keep),
        steps=tuple(results.steps[row] for row in keep),
        samples=tuple(results.samples[row] for row in keep),
        epochs=tuple(results.epochs[row] for row in keep),
    )
