"""Papers' names: each is a function that returns a method with the paper's defaults.

>>> from shoal import catalog
>>> catalog.flash() | catalog.special(lam=0.25)  # doctest: +ELLIPSIS
Method flash + special (weights: samples): EarlyStop() | DriftAware() | ServerAnchor()
"""

from shoal.catalog.averaging import fedadagrad, fedadam, fedavg, fedavgm, fedprox, fedyogi, scaffold
from shoal.catalog.clustered import adaptive_fedavg, feddrift_eager, hypcluster, oracle
from shoal.catalog.continual import fedcil, flwf_2t, mfcl, pfeddil, sr_fdil
from shoal.catalog.detect import (
    detect_adwin,
    detect_disparity,
    detect_page_hinkley,
    measure_divergence,
    measure_training_loss,
)
from shoal.catalog.five import (
    average,
    dynamic_init,
    early_stop,
    fedagg,
    fedinit,
    flash,
    previous,
    special,
    special_c,
)
from shoal.catalog.gradient import (
    continuous,
    fedacg,
    fedcm,
    feddc,
    feddyn,
    fednova,
    fedsam,
    moon,
)
from shoal.catalog.personal import apfl, ditto, fedbabu, fedgh, local_only
from shoal.catalog.registry import METHODS, build
from shoal.catalog.robust import krum, median, multi_krum, norm_clip, trimmed_mean

__all__ = [
    "METHODS",
    "build",
    "adaptive_fedavg",
    "apfl",
    "average",
    "continuous",
    "detect_adwin",
    "detect_disparity",
    "detect_page_hinkley",
    "ditto",
    "dynamic_init",
    "early_stop",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedagg",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedcil",
    "fedcm",
    "feddc",
    "feddrift_eager",
    "feddyn",
    "fedgh",
    "fedinit",
    "fednova",
    "fedprox",
    "fedsam",
    "fedyogi",
    "flash",
    "flwf_2t",
    "hypcluster",
    "krum",
    "local_only",
    "measure_divergence",
    "measure_training_loss",
    "median",
    "mfcl",
    "moon",
    "multi_krum",
    "norm_clip",
    "oracle",
    "pfeddil",
    "previous",
    "scaffold",
    "special",
    "special_c",
    "sr_fdil",
    "trimmed_mean",
]
