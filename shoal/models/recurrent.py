"""An LSTM out of plain operations, so that function transforms and stacking see through it."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    """The weights of one layer; gates in the order input, forget, candidate, output.

    One bias vector, as in the paper (``nn.LSTM`` has two that only ever act as their sum).
    """

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        bound = 1.0 / sqrt(width)
        self.input = nn.Parameter(torch.empty(4 * width, before).uniform_(-bound, bound))
        self.hidden = nn.Parameter(torch.empty(4 * width, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * width).uniform_(-bound, bound))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """States [rows, length, width]; a place that is not real keeps the state before it."""
        rows, length, _ = x.shape
        given = x @ self.input.T + self.bias
        state = given.new_zeros(rows, self.hidden.shape[1])
        memory = state
        out = []
        for place in range(length):
            into, keep, candidate, show = (given[:, place] + state @ self.hidden.T).chunk(4, 1)
            fresh = torch.sigmoid(keep) * memory + torch.sigmoid(into) * torch.tanh(candidate)
            seen = real[:, place].unsqueeze(1)
            state = torch.where(seen, torch.sigmoid(show) * torch.tanh(fresh), state)
            memory = torch.where(seen, fresh, memory)
            out.append(state)
        return torch.stack(out, 1)


class LSTM(nn.Module):
    """Layers of cells; returns the last state of the top layer, padding skipped.

    Reference: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997 (with forget gates).
    """

    def __init__(self, before: int, width: int, layers: int) -> None:
        super().__init__()
        sizes = [before, *[width] * (layers - 1)]
        self.cells = nn.ModuleList(Cell(size, width) for size in sizes)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x, real)
        return x[:, -1]
