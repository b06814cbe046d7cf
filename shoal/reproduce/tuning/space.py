"""What there is to try: the clients' rate for every method, and a method's own settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from shoal import rng
from shoal.errors import UserError

Setting = dict[str, Any]  # local.rate and the method's own settings

# The clients' rates that the FedInit paper tries (its appendix), unless a config says others.
RATES = (0.01, 0.1, 0.5, 1.0)
# Grids as papers print them; the numbers in brackets say which paper.
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "fedinit": {"beta": (0.01, 0.02, 0.05, 0.1, 0.15)},  # FedInit, Table 3
    "fedadam": {"eta_g": (0.01, 0.05, 0.1, 1.0)},  # FedInit, appendix
    "fedyogi": {"eta_g": (0.01, 0.05, 0.1, 1.0)},  # as fedadam; its own is not printed
    "fedadagrad": {"eta_g": (0.01, 0.05, 0.1, 1.0)},  # as fedadam; its own is not printed
    "fedsam": {"rho": (0.01, 0.1, 1.0)},  # FedInit, appendix
    "feddyn": {"alpha": (0.001, 0.01, 0.1, 1.0)},  # FedInit, appendix
    "fedcm": {"alpha": (0.05, 0.1, 0.5, 0.9)},  # FedInit, appendix
    "special": {"lam": (0.05, 0.1, 0.15, 0.25, 0.3, 0.35, 0.45, 0.5, 0.55)},  # SPECIAL, F.2
    "fedagg": {"alpha": (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9)},  # FedAgg, Figure 12
    "dynamic_init": {"R": (10.0, 50.0, 80.0, 100.0, 120.0, 140.0)},  # dynamic-init, Table 13
    "fedprox": {"mu": (0.001, 0.01, 0.1, 1.0)},  # no paper of the five prints one
    "flash": {"eta_g": (0.01, 0.05, 0.1)},  # no grid is printed
    "fedacg": {"lam": (0.5, 0.85)},  # dynamic-init's two values
}


def trials(
    method: str, count: int, rates: Sequence[float], seed: int, own: Mapping[str, Sequence[Any]]
) -> list[Setting]:
    """Exactly ``count`` different settings of a method: points of its grid in a drawn order, then,
    when the grid is used up, rates drawn between its lowest and highest.

    >>> [len(trials(m, 9, (0.01, 0.1), 0, grid_of(m))) for m in ("fedavg", "fedinit")]
    [9, 9]
    """
    if min(rates) <= 0:
        raise UserError(f"rates are {list(rates)}; every rate must be above 0")
    if len(set(rates)) < 2:
        raise UserError(f"rates are {list(rates)}; give at least two, lowest and highest")
    grid = [
        {"local.rate": rate, **dict(zip(own, values, strict=True))}
        for rate in rates
        for values in product(*own.values())
    ]
    draw = rng.generator(seed, rng.Purpose.PART, *method.encode())
    order = [grid[i] for i in draw.permutation(len(grid))]
    return [*order[:count], *_between(rates, own, draw, count - len(order))]


def _between(
    rates: Sequence[float], own: Mapping[str, Sequence[Any]], draw: Any, count: int
) -> Iterator[Setting]:
    low, high = math.log(min(rates)), math.log(max(rates))
    for _ in range(max(0, count)):
        rate = float(f"{math.exp(draw.uniform(low, high)):.4g}")
        yield {"local.rate": rate, **{k: v[int(draw.integers(len(v)))] for k, v in own.items()}}


def grid_of(method: str) -> dict[str, Sequence[Any]]:
    """A method's own settings that are tried; none for a method that is not in the table."""
    return dict(GRIDS.get(method, {}))
