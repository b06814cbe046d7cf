"""Some clients of an order, laid out as tensors with the client as the first axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.base import Member, Order
from shoal.engines.batches import batch_rows, epoch_order, steps_an_epoch, whole
from shoal.local import Given, Local
from shoal.tree import Tree
from shoal.types import Batch, ClientData

GATHER_BYTES = 2**20


class Piece(NamedTuple):
    """Clients ``begin..end`` of a chunk that take the same kind of batch at a step."""

    begin: int
    end: int
    length: int  # rows of the batch, padding included
    weighted: bool  # some rows may be padding


@dataclass(frozen=True)
class Chunk:
    """Members in the order in which they run: those with the most steps first."""

    order: Order
    members: tuple[Member, ...]
    rows: Tensor  # [C, n] rows of the pool, padded with the first
    labels: Tensor  # [C, n, ...]
    weights: Tensor | None  # [C, n] of the rows inside the loss
    counts: tuple[int, ...]

    @classmethod
    def of(cls, order: Order, members: Sequence[Member]) -> Chunk:
        """Lay out members; they must share one pool."""
        counts = tuple(len(m.train) for m in members)
        if min(counts) == max(counts):
            rows = torch.stack([m.train.rows for m in members])
            labels = torch.stack([m.train.labels for m in members])
        else:
            rows = torch.nn.utils.rnn.pad_sequence([m.train.rows for m in members], True)
            labels = torch.nn.utils.rnn.pad_sequence([m.train.labels for m in members], True)
        weights = None
        given = [m.train.weight for m in members]
        like = next((w for w in given if w is not None), None)
        if like is not None:
            own = [like.new_ones(n) if w is None else w for w, n in zip(given, counts, strict=True)]
            weights = torch.nn.utils.rnn.pad_sequence(own, True)
        return cls(order, tuple(members), rows, labels, weights, counts)

    @property
    def pool_x(self) -> Tensor:
        return self.members[0].train.pool.x

    def given(self) -> Given:
        """Memories stacked over clients; what all clients share is not."""
        order, theta = self.order, self.order.model.theta
        counts = torch.tensor([m.train.count for m in self.members], dtype=theta.dtype)
        if not order.program.keeps_memory:
            none = ((),) * len(order.program.method.parts)
            return Given(theta, order.initial, order.model.stats, counts, none, order.sent)
        memories = tree.stack([_memories(order, m) for m in self.members])
        return Given(theta, order.initial, order.model.stats, counts, memories, order.sent)

    def local(self) -> Local:
        """All data of every client, padded, as far as the method asks to see it."""
        program = self.order.program
        train = _stacked([m.train for m in self.members]) if program.needs_train else None
        validation = None
        if program.needs_validation:
            validation = _stacked([m.validation or m.train for m in self.members])
        return Local(train, validation)

    def steps(self, done: Sequence[int]) -> list[int]:
        """How many steps each client takes in the next epoch."""
        out = []
        for member, rows, before in zip(self.members, self.counts, done, strict=True):
            left = steps_an_epoch(self.order, rows)
            out.append(left if member.steps is None else max(0, min(left, member.steps - before)))
        return out

    def regular(self, steps: Sequence[int]) -> int:
        """Leading steps in which every client takes a full batch of the same length."""
        full = {batch_rows(self.order, rows) for rows in self.counts}
        if len(full) > 1:
            return 0
        return min(min(s, rows // min(full)) for s, rows in zip(steps, self.counts, strict=True))

    def pieces(self, step: int, steps: Sequence[int]) -> Iterator[Piece]:
        """Contiguous clients that take this step with the same kind of batch."""
        begin, kind = 0, self._kind(0, step, steps)
        for i in range(1, len(steps) + 1):
            now = self._kind(i, step, steps) if i < len(steps) else None
            if now != kind:
                if kind is not None:
                    yield Piece(begin, i, *kind)
                begin, kind = i, now

    def _kind(self, i: int, step: int, steps: Sequence[int]) -> tuple[int, bool] | None:
        if step >= steps[i]:
            return None
        full = batch_rows(self.order, self.counts[i])
        real = min(full, self.counts[i] - step * full)
        return (full, True) if self.order.pad else (real, False)

    def epoch(self, epoch: int) -> Epoch:
        """The rows and labels of this epoch in their drawn order."""
        clients = [m.client for m in self.members]
        positions = epoch_order(self.order, clients, list(self.counts), epoch)
        labels = self.labels
        index = positions
        while index.dim() < labels.dim():
            index = index.unsqueeze(-1)
        labels = labels.gather(1, index.expand(*positions.shape, *labels.shape[2:]))
        weights = None if self.weights is None else self.weights.gather(1, positions)
        return Epoch(self, self.rows.gather(1, positions), labels, weights)


@dataclass(frozen=True)
class Epoch:
    """A chunk's rows in the order of one epoch."""

    chunk: Chunk
    rows: Tensor
    labels: Tensor
    weights: Tensor | None

    def blocks(self, steps: int) -> Iterator[list[Tensor]]:
        """The tensors of the regular steps' batches, ``[C, B, ...]`` each.

        Several steps are gathered at once, as many as stay in the cache, with the step as the
        first axis, so that a step's batch is contiguous and costs no call of its own.
        """
        x, clients = self.chunk.pool_x, len(self.chunk.counts)
        length = batch_rows(self.chunk.order, self.chunk.counts[0])
        row_bytes = x[0].numel() * x.element_size() if len(x) else 1
        many = max(1, GATHER_BYTES // (row_bytes * clients * length))
        columns = [self.labels]
        if self.weights is not None:
            columns.append(self.weights)
        elif self.chunk.order.pad:
            columns.append(torch.ones(self.rows.shape, dtype=self.chunk.order.model.theta.dtype))
        for first in range(0, steps, many):
            count = min(many, steps - first)
            span = slice(first * length, (first + count) * length)
            shape = (clients, count, length)
            rows = self.rows[:, span].reshape(shape).transpose(0, 1)
            gathered = x.index_select(0, rows.reshape(-1))
            stepwise = [gathered.view(count, clients, length, *x.shape[1:])]
            for column in columns:
                cut = column[:, span].reshape(*shape, *column.shape[2:])
                stepwise.append(cut.transpose(0, 1).contiguous())
            yield from map(list, zip(*(t.unbind(0) for t in stepwise), strict=True))

    def batch(self, piece: Piece, step: int, begin: int, end: int) -> Batch:
        """``[end - begin, length, ...]`` rows of this step for some clients of a piece."""
        first = step * batch_rows(self.chunk.order, self.chunk.counts[piece.begin])
        span = slice(first, first + piece.length)
        rows, labels = self.rows[begin:end, span], self.labels[begin:end, span]
        weight = None if self.weights is None else self.weights[begin:end, span]
        if piece.weighted:
            rows, labels, weight = self._padded(rows, labels, weight, piece, first, begin, end)
        x = self.chunk.pool_x
        found = x.index_select(0, rows.reshape(-1))
        return Batch(found.view(end - begin, piece.length, *x.shape[1:]), labels, weight)

    def _padded(
        self,
        rows: Tensor,
        labels: Tensor,
        weight: Tensor | None,
        piece: Piece,
        first: int,
        begin: int,
        end: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        missing = piece.length - rows.shape[1]
        if missing > 0:
            rows = torch.nn.functional.pad(rows, (0, missing))
            grow = (0, 0) * (labels.dim() - 2) + (0, missing)
            labels = torch.nn.functional.pad(labels, grow)
        dtype = self.chunk.order.model.theta.dtype
        position = torch.arange(first, first + piece.length)
        counts = torch.tensor(self.chunk.counts[begin:end])
        real = (position[None, :] < counts[:, None]).to(dtype)
        if weight is not None:
            real = real * torch.nn.functional.pad(weight, (0, max(0, missing)))
        return rows, labels, real


def _memories(order: Order, member: Member) -> tuple[Tree, ...]:
    """The member's memories; made anew only where something is missing."""
    kept = member.memories
    if kept is not None and all(own is not None for own in kept):
        return kept
    return order.given(member).memories


def _stacked(data: Sequence[ClientData]) -> Batch:
    """``[C, n, ...]`` with padding weighed 0, or no weights when all clients are equally long."""
    parts = [whole(d) for d in data]
    sizes = [p.x.shape[0] for p in parts]
    pad = torch.nn.utils.rnn.pad_sequence
    x, y = pad([p.x for p in parts], True), pad([p.y for p in parts], True)
    if min(sizes) == max(sizes) and all(p.weight is None for p in parts):
        return Batch(x, y)
    ones = [p.x.new_ones(p.x.shape[0]) if p.weight is None else p.weight for p in parts]
    return Batch(x, y, pad(ones, True))
