"""The samples of an evaluation set, copied out of their pool once for as long as the set lives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from shoal.types import ClientData

KEPT_BYTES = 2**26  # larger sets are copied batch by batch, so that memory stays bounded

# Row numbers -> (the pool's samples, those rows of them). A world hands out the same row numbers
# for as long as nothing changes; when it drops them, the copy goes too.
_copies: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def gathered(data: ClientData) -> Tensor | None:
    """``pool.x[rows]``; consecutive rows are a view and cost nothing. None if that is too much."""
    rows, x = data.rows, data.pool.x
    if _consecutive(rows):
        return x[int(rows[0]) : int(rows[0]) + len(rows)] if len(rows) else x[:0]
    known = _copies.get(rows, None)  # type: ignore[no-untyped-call]
    if known is not None and known[0] is x:
        found: Tensor = known[1]
        return found
    if len(rows) * x[0].numel() * x.element_size() > KEPT_BYTES:
        return None
    _copies[rows] = (x, x.index_select(0, rows))
    return gathered(data)


def _consecutive(rows: Tensor) -> bool:
    """Whether rows are a, a + 1, a + 2 ..."""
    if len(rows) < 2:
        return True
    if int(rows[-1]) - int(rows[0]) != len(rows) - 1:
        return False
    first = int(rows[0])
    return torch.equal(rows, torch.arange(first, first + len(rows), device=rows.device))
