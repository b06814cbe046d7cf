"""Running sums over uploads, in client order, so that nothing holds a list of models."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Results
from shoal.engines.sparse_rows import Scattered
from shoal.engines.sums import Sums, payload_sums
from shoal.method import Method
from shoal.tree import Tree
from shoal.types import Reduction
from shoal.view import Uploads


class Accumulator:
    """Adds rows in client order, or takes the sum that an engine has made along the tree of its
    chunks (:mod:`shoal.engines.sums`), so neither threads nor the order of arrival change a bit."""

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

    def _add_sums(self, sums: Sums) -> None:
        self.delta.add_(sums.delta)
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


def _rows(results: Results, keep: list[int]) -> Results:
    """The plain figures of some clients; tensors stay as they are."""
    return results._replace(
        clients=tuple(results.clients[row] for row in keep),
        steps=tuple(results.steps[row] for row in keep),
        samples=tuple(results.samples[row] for row in keep),
        epochs=tuple(results.epochs[row] for row in keep),
    )
