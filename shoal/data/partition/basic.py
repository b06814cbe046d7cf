"""Iid, columns, and the checks that all share."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError

# ---- checks --------------------------------------------------------------------------------------
# What every partitioner asks of its arguments, and the words it complains with.

Rows = NDArray[np.int64]


def whole(name: str, value: object, least: int) -> int:
    """``value`` as an int, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def label_codes(labels: NDArray[Any]) -> tuple[Rows, int]:
    """Labels renamed to 0..C-1 in sorted order, and C. Classes without rows do not exist."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"labels must be a one-dimensional array of integers, not {labels.dtype} of shape "
            f"{labels.shape}."
        )
    if labels.size == 0:
        raise UserError("labels is empty, and a partition needs at least one sample.")
    values, codes = np.unique(labels, return_inverse=True)
    return codes.astype(np.int64), len(values)


def enough(samples: int, clients: int, minimum: int = 1) -> None:
    """Refuse a partition in which somebody would have fewer than ``minimum`` samples."""
    if clients * minimum > samples:
        raise UserError(
            f"{clients} clients with at least {minimum} samples each need {clients * minimum} "
            f"samples, but there are {samples}; use at most {samples // minimum} clients."
        )


def rows_by_class(codes: Rows, classes: int, rng: np.random.Generator) -> list[Rows]:
    """The rows of each class, shuffled."""
    shuffled = rng.permutation(len(codes))
    ordered = shuffled[np.argsort(codes[shuffled], kind="stable")]
    ends = np.cumsum(np.bincount(codes, minlength=classes))
    return np.split(ordered, ends[:-1])


# ---- iid -----------------------------------------------------------------------------------------
# Everybody draws from the same distribution.


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


# ---- columns -------------------------------------------------------------------------------------
# Clients that the data itself names: writers, roles, users, sites.


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
            f"a column of clients must be one value per row, not of shape {values.shape}."
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
