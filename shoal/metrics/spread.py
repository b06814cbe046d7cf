"""How a figure differs between members."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple


class Spread(NamedTuple):
    """``mean`` and ``std`` (of the population: divided by n) over members, each counting the
    same; ``worst_decile`` is the mean over the tenth of the members that do worst (at least one,
    rounded up)."""

    mean: float
    std: float
    worst_decile: float
    members: int


def spread(values: Sequence[float]) -> Spread | None:
    """None where there is nobody.

    >>> spread([1.0, 0.5, 0.0, 0.5])
    Spread(mean=0.5, std=0.3535533905932738, worst_decile=0.0, members=4)
    """
    if not values:
        return None
    count = len(values)
    mean = sum(values) / count
    std = sqrt(sum((v - mean) ** 2 for v in values) / count)
    worst = sorted(values)[: -(-count // 10)]
    return Spread(mean, std, sum(worst) / len(worst), count)
