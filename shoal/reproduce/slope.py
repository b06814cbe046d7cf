"""The exponent of a power law through some points."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line through the logs.

    >>> round(log_slope([1, 2, 4], [8.0, 4.0, 2.0]), 6)
    -1.0
    """
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    left, right = sum(a) / len(a), sum(b) / len(b)
    top = sum((p - left) * (q - right) for p, q in zip(a, b, strict=True))
    return top / sum((p - left) ** 2 for p in a)
