"""A chunk's rows in the order of one epoch, and the batches cut from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.api import Order
from shoal.engines.batches import batch_rows
from shoal.engines.compiler.compile import Replay
from shoal.engines.compiler.steps import Steps
from shoal.types import Batch

GATHER_BYTES = 2**20


class Piece(NamedTuple):
    """Clients ``begin..end`` of a chunk that take the same kind of batch at a step."""

    begin: int
    end: int
    length: int  # rows of the batch, padding included
    weighted: bool  # some rows may be padding


@dataclass
class Shared:
    """What chunks that are parts of one layout find out once for all of them: what was drawn for
    each epoch, and which compiled steps they take (by clients, rows of a batch and epoch)."""

    replays: dict[tuple[int, int, int], Replay] = field(default_factory=dict)
    epochs: dict[int, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def of(
        self, epoch: int, draw: Callable[[int], tuple[Tensor, Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, labels and weights in the order of the epoch."""
        with self.lock:  # whichever thread comes first draws for everybody
            if epoch not in self.epochs:
                self.epochs[epoch] = draw(epoch)
            return self.epochs[epoch]


@dataclass(frozen=True)
class Epoch:
    """Rows of some clients in the order of one epoch."""

    order: Order
    pool_x: Tensor
    counts: tuple[int, ...]
    rows: Tensor
    labels: Tensor
    weights: Tensor | None

    def steps(self, count: int, begin: int = 0, length: int | None = None) -> Steps:
        """What ``count`` steps of one length read from row ``begin`` on, ``[C, B, ...]`` each.

        Several are gathered at once, as many as stay in the cache, with the step as the first
        axis, so that a step's batch is contiguous and costs no call of its own.
        """
        length = length or batch_rows(self.order, self.counts[0])
        rows, labels, weights = self.rows, self.labels, self.weights
        if begin or count * length < rows.shape[1]:
            span = slice(begin, begin + count * length)
            rows, labels = rows[:, span], labels[:, span]
            weights = None if weights is None else weights[:, span]
        return self._stepwise(rows, labels, weights, count)

    def stretch(self, piece: Piece, step: int, count: int, begin: int, end: int) -> Steps:
        """What some clients of a piece read in ``count`` steps from this one on."""
        first = step * batch_rows(self.order, self.counts[piece.begin])
        every = piece._replace(length=count * piece.length)
        span = slice(first, first + every.length)
        rows, labels = self.rows[begin:end, span], self.labels[begin:end, span]
        weight = None if self.weights is None else self.weights[begin:end, span]
        if piece.weighted:
            rows, labels, weight = self._padded(rows, labels, weight, every, first, begin, end)
        return self._stepwise(rows, labels, weight, count)

    def every_step(self, steps: Sequence[int], stack: int) -> Steps:
        """What all steps of an epoch read, padded to ``stack`` clients; client i takes
        ``steps[i]`` of them, and what it reads after those weighs nothing."""
        length = batch_rows(self.order, self.counts[0])
        width, spare = max(steps) * length, stack - len(steps)
        limits = [min(n, own * length) for n, own in zip(self.counts, steps, strict=True)]
        real = self._real(0, width, [*limits, *[0] * spare])
        rows, labels = (_grown(column, width, stack) for column in (self.rows, self.labels))
        if self.weights is not None:
            real = real * _grown(self.weights, width, stack)
        return self._stepwise(rows, labels, real, max(steps))

    def _stepwise(self, rows: Tensor, labels: Tensor, weight: Tensor | None, count: int) -> Steps:
        """``[C, count * B]`` columns with the step as the first axis, ``B`` rows each."""
        x, clients, length = self.pool_x, rows.shape[0], rows.shape[1] // count
        shape = (clients, count, length)
        chosen, *rest = [
            column.reshape(*shape, *column.shape[2:]).transpose(0, 1).contiguous()
            for column in (rows, labels, weight)
            if column is not None
        ]
        sample = x.shape[1:]
        row_bytes = max(1, sample.numel() * x.element_size())
        many = max(1, GATHER_BYTES // (row_bytes * clients * length))
        return Steps(x, chosen.view(count, -1), rest, [clients, length, *sample], many)

    def batch(self, piece: Piece, step: int, begin: int, end: int) -> Batch:
        """``[end - begin, length, ...]`` rows of this step for some clients of a piece."""
        first = step * batch_rows(self.order, self.counts[piece.begin])
        span = slice(first, first + piece.length)
        rows, labels = self.rows[begin:end, span], self.labels[begin:end, span]
        weight = None if self.weights is None else self.weights[begin:end, span]
        if piece.weighted:
            rows, labels, weight = self._padded(rows, labels, weight, piece, first, begin, end)
        x = self.pool_x
        found = x.index_select(0, rows.reshape(-1))
        # dense: as a view they would have the strides of the chunk's largest client, and a step is
        # traced anew for other strides
        weight = None if weight is None else weight.contiguous()
        found = found.view(end - begin, piece.length, *x.shape[1:])
        return Batch(found, labels.contiguous(), weight)

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
            rows, labels = _grown(rows, piece.length), _grown(labels, piece.length)
        real = self._real(first, piece.length, self.counts[begin:end])
        if weight is not None:
            real = real * torch.nn.functional.pad(weight, (0, max(0, missing)))
        return rows, labels, real

    def _real(self, first: int, width: int, ends: Sequence[int]) -> Tensor:
        """1 at places before each client's end, of ``width`` places from ``first`` on."""
        here = self.rows.device
        position = torch.arange(first, first + width, device=here)
        before = position[None, :] < torch.tensor(ends, device=here)[:, None]
        return before.to(self.order.model.theta.dtype)


def _grown(column: Tensor, width: int, stack: int = 0) -> Tensor:
    """``[C, n, ...]`` as ``[stack, width, ...]``: each client's first entry again, and the last
    client again."""
    column = column[:, :width]
    clients, missing = column.shape[0], width - column.shape[1]
    if missing:
        first = column[:, :1].expand(clients, missing, *column.shape[2:])
        column = torch.cat([column, first], 1)
    spare = stack - clients
    if spare > 0:
        column = torch.cat([column, column[-1:].expand(spare, *column.shape[1:])])
    return column
