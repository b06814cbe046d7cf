"""Rows in the order of time, cut into stretches that are the natural clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.data.sources.registry import Dataset
from shoal.errors import UserError
from shoal.types import Pool

EVERY = 5  # each fifth row is for testing, so that both parts span all of the time


def stream(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    classes: int,
    clients: int | NDArray[Any],
    standardise: bool = True,
) -> Dataset:
    """A data set of rows in the order of time.

    ``clients``: a number of stretches whose lengths differ by at most one, or the stretch of each
    row. Every fifth row is for testing. ``standardise`` takes mean and deviation of the training
    rows.
    """
    if isinstance(clients, np.ndarray):
        group = np.unique(clients, return_inverse=True)[1].astype(np.int64)
    else:
        group = _stretches(name, len(y), clients)
    test = np.arange(len(y)) % EVERY == EVERY - 1
    rows = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    labels = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64))
    if standardise:
        seen = rows[torch.from_numpy(~test)]
        rows = (rows - seen.mean(0)) / seen.std(0).clamp_min(1e-6)
    pools, groups = [], []
    for chosen in (~test, test):
        at = torch.from_numpy(np.flatnonzero(chosen))
        pools.append(Pool(rows[at], labels[at]))
        groups.append(torch.from_numpy(group)[at])
    shape = (rows.shape[1],)
    return Dataset(name, pools[0], pools[1], classes, shape, groups[0], groups[1])


def _stretches(name: str, rows: int, clients: object) -> NDArray[np.int64]:
    if (
        isinstance(clients, bool)
        or not isinstance(clients, int)
        or not 1 <= clients <= rows // EVERY
    ):
        raise UserError(
            f"clients of data set {name!r} is {clients!r}; it must be a whole number from 1 to "
            f"{rows // EVERY}."
        )
    return np.arange(rows, dtype=np.int64) * clients // rows
