"""All rows of several clients as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.utils.rnn import pad_sequence

from shoal.engines.batches import whole
from shoal.types import Batch, ClientData


def stacked_whole(data: Sequence[ClientData]) -> Batch:
    """``[C, n, ...]`` with padding weighed 0, or no weights when all clients are equally long."""
    parts = [whole(d) for d in data]
    sizes = [p.x.shape[0] for p in parts]
    x, y = pad_sequence([p.x for p in parts], True), pad_sequence([p.y for p in parts], True)
    if min(sizes) == max(sizes) and all(p.weight is None for p in parts):
        return Batch(x, y)
    ones = [p.x.new_ones(p.x.shape[0]) if p.weight is None else p.weight for p in parts]
    return Batch(x, y, pad_sequence(ones, True))
