"""Papers' names: each is a function that returns a method with the paper's defaults.

>>> from shoal import catalog
>>> catalog.flash() | catalog.special(lam=0.25)  # doctest: +ELLIPSIS
Method flash + special (weights: samples): EarlyStop() | DriftAware() | ServerAnchor()
"""

from shoal.catalog.averaging import fedadagrad, fedadam, fedavg, fedavgm, fedprox, fedyogi, scaffold
from shoal.catalog.five import (
    average,
    dynamic_init,
    fedagg,
    fedinit,
    flash,
    previous,
    special,
    special_c,
)
from shoal.catalog.registry import METHODS, build

__all__ = [
    "METHODS",
    "build",
    "average",
    "dynamic_init",
    "fedadagrad",
    "fedadam",
    "fedagg",
    "fedavg",
    "fedavgm",
    "fedinit",
    "fedprox",
    "fedyogi",
    "flash",
    "previous",
    "scaffold",
    "special",
    "special_c",
]
