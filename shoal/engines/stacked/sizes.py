"""Stacks with spare rows: a few sizes serve every number of clients.

A stack is traced for its number of rows. Cohorts that are split, and clients that stop early or
have fewer steps, make all numbers; so where clients differ and a step is small, a stack has a
little more rows than clients. What happens in a spare row is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.engines.stacked.compiled import Compiled
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plan import SMALL_STEP, work_of


def sizes_for(compiled: Compiled, chunk: Chunk) -> tuple[int, ...]:
    """Rows that the chunk's stacks may have, the most last; () where they are exactly its clients.

    A large step is worth more than a trace, and equal clients seldom need another one.
    """
    spare = compiled.stacked and chunk.order.pad > 0 and not compiled.program.noisy
    if not spare or chunk.even or work_of(chunk) >= SMALL_STEP:
        return ()
    return stack_sizes(len(chunk.members))


def stack_sizes(clients: int) -> tuple[int, ...]:
    """Powers of four, and the next of two numbers an octave.

    >>> stack_sizes(1), stack_sizes(5), stack_sizes(10), stack_sizes(30)
    ((1,), (1, 4, 6), (1, 4, 12), (1, 4, 16, 32))
    """
    step = 1 << max(0, clients.bit_length() - 2)
    most = -(-clients // step) * step
    return (*(4**k for k in range(most.bit_length()) if 4**k < most), most)


def rows_for(clients: int, sizes: Sequence[int]) -> int:
    """The rows of a stack of so many clients."""
    return next((size for size in sizes if size >= clients), clients)


def filled(places: Sequence[int], rows: int) -> Tensor:
    """Places to take rows from; those to spare are copies of the last."""
    return torch.tensor([*places, *[places[-1]] * (rows - len(places))])


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
