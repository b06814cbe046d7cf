"""All rows of several clients as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from shoal.engines.batches import whole
from shoal.types import Batch, ClientData


def stacked_whole(data: Sequence[ClientData], length: int = 0, unequal: bool = False) -> Batch:
    """``[C, n, ...]`` with padding weighed 0, or no weights when all clients are equally long.

    Where they are not, or others are not (``unequal``), ``n`` is a little more than the longest:
    what is done with such batches is recorded for each length, and cohorts of unequal clients would
    have a new one in every round. With a ``length`` it is that, and rows have weights whoever the
    clients are.
    """
    parts = [whole(d) for d in data]
    sizes = [p.x.shape[0] for p in parts]
    even = not unequal and min(sizes) == max(sizes) and all(p.weight is None for p in parts)
    if even and not length:
        return Batch(
            pad_sequence([p.x for p in parts], True), pad_sequence([p.y for p in parts], True)
        )
    ones = [p.x.new_ones(p.x.shape[0]) if p.weight is None else p.weight for p in parts]
    columns = [p.x for p in parts], [p.y for p in parts], ones
    # a client alone pays for all of its padding; in a stack most are padded anyway
    length = length or longer(max(sizes), 8 if len(data) == 1 else 2)
    return Batch(*(_padded(column, length) for column in columns))


def longer(size: int, lengths: int) -> int:
    """The next of so many lengths (a power of two) an octave.

    >>> [longer(n, 2) for n in (5, 9, 17, 100, 129)]
    [6, 12, 24, 128, 192]
    >>> [longer(n, 8) for n in (5, 9, 17, 100, 129)]
    [5, 9, 18, 104, 144]
    """
    step = max(1, (1 << (size.bit_length() - 1)) // lengths)
    return -(-size // step) * step


def _padded(rows: Sequence[Tensor], length: int) -> Tensor:
    found = pad_sequence(list(rows), True)
    missing = length - found.shape[1]
    return pad(found, (0, 0) * (found.dim() - 2) + (0, missing)) if missing else found
