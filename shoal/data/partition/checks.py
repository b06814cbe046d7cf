"""What every partitioner asks of its arguments, and the words it complains with."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError

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
