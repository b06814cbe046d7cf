"""Papers' names: each is a function that returns a method with the paper's defaults.

- registry      names that users type, their settings, and the methods they build
- five_papers   DynamicInit, FedInit, FLASH, SPECIAL, FedAgg, and the baselines of the first
- averaging     FedAvg, its server variants, robust aggregation
- client_drift  methods that change the local gradient, the local loss, or the server's use of
                the work
- personal      personal and clustered methods
- continual     methods against forgetting
- plug_ins      detectors, measures, compressed or private changes: to compose with any method

A paper's method stands with its family, also where it is meant to be composed with another one.

>>> from shoal import catalog
>>> catalog.flash() | catalog.special(lam=0.25)  # doctest: +ELLIPSIS
Method flash + special (client weights: by_samples): EarlyStop() | DriftAware() | ServerAnchor()
"""

from shoal.methods.catalog.averaging import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedprox,
    fedyogi,
    krum,
    median,
    multi_krum,
    norm_clip,
    scaffold,
    trimmed_mean,
)
from shoal.methods.catalog.client_drift import (
    continuous,
    fedacg,
    fedcm,
    feddc,
    feddyn,
    fednova,
    fedsam,
    moon,
)
from shoal.methods.catalog.continual import fedcil, flwf_2t, mfcl, pfeddil, sr_fdil
from shoal.methods.catalog.five_papers import (
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
from shoal.methods.catalog.personal import (
    adaptive_fedavg,
    apfl,
    ditto,
    fedbabu,
    feddrift_eager,
    fedgh,
    hypcluster,
    local_only,
    oracle,
)
from shoal.methods.catalog.plug_ins import (
    detect_adwin,
    detect_disparity,
    detect_page_hinkley,
    measure_divergence,
    measure_training_loss,
    private,
    quantize,
    random_k,
    top_k,
)
from shoal.methods.catalog.registry import METHODS, build

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
    "private",
    "quantize",
    "random_k",
    "scaffold",
    "special",
    "special_c",
    "sr_fdil",
    "top_k",
    "trimmed_mean",
]
