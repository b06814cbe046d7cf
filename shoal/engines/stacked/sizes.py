"""Few sizes, so that little is compiled: every stack and every padded length is one of these.

A step is compiled for its shapes. Cohorts that are split, clients that stop early and data sets of
all lengths would make all numbers; so numbers are rounded up to a ladder, and what is in the rows
to spare is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# Sizes per octave (a power of two): more sizes waste less room and compile more often.
STACKS = 2  # clients of a stack
LENGTHS = 2  # rows of a whole data set in a stack, most of which is padding anyway
LENGTHS_ALONE = 8  # rows of one client's whole data set, who pays for all of the padding
TABLE_ROWS = 2  # rows of an embedding that a client looks up
QUESTION_LENGTHS = 0.5  # rows of a client's data set in a question


def padded_size(size: int, per_octave: float) -> int:
    """The next of so many sizes per octave; 0.5 is every other power of two.

    >>> [padded_size(n, 2) for n in (1, 5, 9, 17, 100, 129)]
    [1, 6, 12, 24, 128, 192]
    >>> [padded_size(n, 8) for n in (5, 9, 17, 100, 129)]
    [5, 9, 18, 104, 144]
    >>> [padded_size(n, 0.5) for n in (1, 16, 17, 300)]
    [1, 16, 64, 1024]
    """
    if per_octave < 1:
        octaves = round(1 / per_octave)
        return 1 << octaves * -(-(size - 1).bit_length() // octaves)
    step = max(1, (1 << (size.bit_length() - 1)) // int(per_octave))
    return -(-size // step) * step


def stack_sizes(clients: int, spare: bool) -> tuple[int, ...]:
    """Rows that a stack of up to so many clients may have: powers of four, and the whole stack,
    with a few rows to ``spare`` if the clients are to be few kinds of cohorts.

    >>> stack_sizes(1, True), stack_sizes(5, True), stack_sizes(10, True), stack_sizes(30, True)
    ((1,), (1, 4, 6), (1, 4, 12), (1, 4, 16, 32))
    >>> stack_sizes(10, False)
    (1, 4, 10)
    """
    most = padded_size(clients, STACKS) if spare else clients
    return (*(4**k for k in range(most.bit_length()) if 4**k < most), most)


def rows_for(clients: int, sizes: Sequence[int]) -> int:
    """The rows of a stack of so many clients."""
    return next((size for size in sizes if size >= clients), clients)


def filled(places: Sequence[int], rows: int, device: torch.device) -> Tensor:
    """Places to take rows from; those to spare are copies of the last."""
    return torch.tensor([*places, *[places[-1]] * (rows - len(places))], device=device)


class Run(NamedTuple):
    """Steps ``first..end`` of the first ``rows`` rows of a stack, and rows that are done then and
    will be stepped on all the same."""

    first: int
    end: int
    rows: int
    done: list[int]


def runs_of(steps: Sequence[int], sizes: Sequence[int], harmless: bool) -> list[Run]:
    """The steps of an epoch in which client i takes ``steps[i]``.

    A run ends where somebody is done; where a step without data is ``harmless``, only where fewer
    rows will do.

    >>> [tuple(run) for run in runs_of([9, 5, 2], [1, 4], False)]
    [(0, 2, 4, [2]), (2, 5, 4, []), (5, 9, 1, [])]
    >>> [tuple(run) for run in runs_of([9, 5, 2], [1, 4], True)]
    [(0, 5, 4, []), (5, 9, 1, [])]
    """
    cuts = sorted({0, *steps})
    found: list[Run] = []
    for first, end in pairwise(cuts):
        rows = rows_for(_active(steps, first), sizes)
        if harmless and found and found[-1].rows == rows:
            found[-1] = found[-1]._replace(end=end)
            continue
        after = 0 if harmless or end == cuts[-1] else rows_for(_active(steps, end), sizes)
        done = [i for i, own in enumerate(steps[:after]) if own == end]
        found.append(Run(first, end, rows, done))
    return found


def _active(steps: Sequence[int], step: int) -> int:
    """Clients up to the last one that takes this step."""
    return max((i + 1 for i, own in enumerate(steps) if own > step), default=0)
