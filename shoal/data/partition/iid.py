"""Everybody draws from the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.partition.checks import Rows, enough, label_codes, whole


def iid(labels: NDArray[Any], clients: int, *, rng: np.random.Generator) -> list[Rows]:
    """Shuffle, then cut into parts whose sizes differ by at most one. Every row is dealt once.

    >>> parts = iid(np.zeros(5, int), 2, rng=np.random.default_rng(0))
    >>> [len(p) for p in parts], sorted(np.concatenate(parts).tolist())
    ([3, 2], [0, 1, 2, 3, 4])
    """
    codes, _ = label_codes(labels)
    clients = whole("clients", clients, 1)
    enough(len(codes), clients)
    order = rng.permutation(len(codes)).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]
