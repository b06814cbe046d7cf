"""What the steps of an epoch read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.types import Batch


class Steps(NamedTuple):
    """What the steps of an epoch read, one step a row: rows of a pool, and further columns."""

    pool: Tensor
    rows: Tensor  # [steps, rows of a batch]
    columns: list[Tensor]  # [steps, ...] each: labels, weights
    shape: list[int]  # of the gathered samples of one step
    many: int  # steps whose samples are gathered at once

    def like(self) -> list[Tensor]:
        """Tensors without memory, laid out as one step's."""
        columns = [without_memory(c.shape[1:], c.dtype) for c in self.columns]
        return [without_memory(tuple(self.shape), self.pool.dtype), *columns]

    def batches(self) -> Iterator[list[Tensor]]:
        """The tensors of every step, for those who take steps one by one."""
        columns = [column.unbind(0) for column in self.columns]
        for first in range(0, len(self.rows), self.many):
            rows = self.rows[first : first + self.many]
            found = self.pool.index_select(0, rows.reshape(-1)).view(len(rows), *self.shape)
            for i, x in enumerate(found.unbind(0), first):
                yield [x, *(column[i] for column in columns)]

    def first(self) -> Batch:
        """The first step's batch."""
        return Batch(*next(self.batches()))

    def cut(self, first: int, end: int, clients: int) -> Steps:
        """Steps ``first..end`` of the first ``clients``."""
        rows = self.rows[first:end, : self.rows.shape[1] // self.shape[0] * clients]
        columns = [column[first:end, :clients] for column in self.columns]
        return Steps(self.pool, rows, columns, [clients, *self.shape[1:]], self.many)

    def alone(self) -> Steps:
        """Of the only client, without an axis for it."""
        return self._replace(columns=[c[:, 0] for c in self.columns], shape=self.shape[1:])


@lru_cache(256)
def without_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of this form that holds nothing."""
    return torch.empty(shape, dtype=dtype, device="meta")


def one_step(batch: Sequence[Tensor]) -> Steps:
    """One step of an epoch whose pool is this batch."""
    x = batch[0]
    pool = x.flatten(0, 1) if x.dim() > 2 else x
    columns = [t.unsqueeze(0) for t in batch[1:]]
    rows = torch.arange(len(pool), device=x.device).unsqueeze(0)
    return Steps(pool, rows, columns, list(x.shape), 1)


class Seen(NamedTuple):
    """All samples of a round's steps, by client, and what the first layer makes of them."""

    outputs: Tensor  # [C, R, out] at the round's start, without the bias
    alike: Tensor  # [C, R, R] products of every two samples
    factors: Tensor  # [C, R, out] gradients of the outputs times minus the rate, as steps are done
