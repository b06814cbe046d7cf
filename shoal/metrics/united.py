"""Sets of many members as one, put together once for as long as members keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from shoal.types import ClientData

# Row numbers of the first set -> (all sets, what they are together). It keeps no set alive.
_unions: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def united(data: Sequence[ClientData]) -> ClientData:
    """All rows of sets of one pool and without weights, one set after the other.

    The same sets give the same tensors, so that what was made of those can be found again.
    """
    known = _unions.get(data[0].rows, None)  # type: ignore[no-untyped-call]
    if known is not None and [id(kept()) for kept in known[0]] == [id(one) for one in data]:
        same: ClientData = known[1]
        return same
    rows, labels = torch.cat([d.rows for d in data]), torch.cat([d.labels for d in data])
    union = ClientData(data[0].pool, rows, labels, float(len(rows)))
    _unions[data[0].rows] = ([ref(d) for d in data], union)
    return union
