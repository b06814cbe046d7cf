"""Clients that the data itself names: writers, roles, users, sites."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.partition.checks import Rows
from shoal.errors import UserError


def by_column(values: NDArray[Any], clients: int | None = None, *, minimum: int = 1) -> list[Rows]:
    """One client for each different value, in sorted order; rows of a client in their order.

    ``minimum`` leaves out values with fewer rows; ``clients`` keeps the first so many of the rest.
    In a world this is ``partition: natural``, by the data set's own column.

    >>> [p.tolist() for p in by_column(np.array(["b", "a", "b"]))]
    [[1], [0, 2]]
    """
    values = np.asarray(values)
    if values.ndim != 1 or not len(values):
        raise UserError(
            f"a column of clients must be one value a row, not of shape {values.shape}."
        )
    names, codes = np.unique(values, return_inverse=True)
    order = np.argsort(codes, kind="stable").astype(np.int64)
    parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(names)))[:-1])
    kept = [part for part in parts if len(part) >= minimum]
    if clients is not None and clients > len(kept):
        raise UserError(
            f"clients is {clients}, but the column names only {len(kept)} with at least {minimum} "
            f"rows; use at most that many."
        )
    return kept if clients is None else kept[:clients]
