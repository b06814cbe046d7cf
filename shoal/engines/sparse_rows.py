"""Deltas of models with a large embedding, kept as the rows that a client looked up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Table:
    """Where an embedding stands in a flat vector."""

    begin: int
    rows: int
    width: int

    @property
    def end(self) -> int:
        return self.begin + self.rows * self.width

    def of(self, vector: Tensor) -> Tensor:
        """The table as a view ``[rows, width]``."""
        return vector[self.begin : self.end].view(self.rows, self.width)

    def resized(self, rows: int) -> Table:
        return Table(self.begin, rows, self.width)

    def narrowed(self, vector: Tensor, chosen: Tensor, rows: int) -> Tensor:
        """The vector with the table cut to the ``chosen`` rows, then zeros up to ``rows``."""
        small = self.resized(rows)
        out = vector.new_empty(vector.numel() - self.end + small.end)
        out[: self.begin] = vector[: self.begin]
        table = small.of(out)
        torch.index_select(self.of(vector), 0, chosen, out=table[: len(chosen)])
        table[len(chosen) :].zero_()
        out[small.end :] = vector[self.end :]
        return out


@dataclass(frozen=True)
class Scattered:
    """One client's delta ``[1, size]``; rows of the table that were not looked up are zero.

    It stands where a tensor of deltas would, for whoever takes one row or adds it to a sum.
    """

    size: int
    table: Table
    chosen: Tensor  # row numbers of the whole table
    small: Tensor  # the vector with the chosen rows first in its table

    @property
    def shape(self) -> torch.Size:
        return torch.Size((1, self.size))

    def dim(self) -> int:
        return 2

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.small.element_size()

    def __getitem__(self, row: int) -> Tensor:
        dense = self.small.new_zeros(self.size)
        self.add_to(dense, 1.0)
        return dense

    def dense(self) -> Tensor:
        return self[0].unsqueeze(0)

    def add_to(self, total: Tensor, weight: float) -> None:
        """``total += weight * delta``, touching the rows that were looked up and no others."""
        table, shrunk = self.table, self._shrunk()
        total[: table.begin].add_(self.small[: table.begin], alpha=weight)
        rows = shrunk.of(self.small)[: len(self.chosen)]
        # three times as fast as ``index_add_``
        table.of(total).scatter_add_(0, self.chosen[:, None].expand_as(rows), rows * weight)
        total[table.end :].add_(self.small[shrunk.end :], alpha=weight)

    def _shrunk(self) -> Table:
        length = self.table.rows * self.table.width - (self.size - self.small.numel())
        return self.table.resized(length // self.table.width)
