"""Office-Caltech-10 as SURF features: ten things in four domains (``...:amazon`` is one)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from shoal.data.decode import npz
from shoal.data.images import Part, joined, split
from shoal.data.places import About, locate
from shoal.data.sources.registry import Dataset, source
from shoal.types import Pool

SURF_DOMAINS = ("amazon", "caltech10", "dslr", "webcam")
SURF = About(
    "office_caltech10_surf", "Office-Caltech-10, SURF counts", "2,533, split 80/20", 10, (800,),
    licence="none stated; research use",
    reference="Gong et al., Geodesic Flow Kernel, CVPR 2012",
    forms={"arrays": tuple(f"{d}.npz" for d in SURF_DOMAINS)},
    by_hand="take the SURF features of Gong et al. as .npz files with x [n, 800] and y from 0",
)  # fmt: skip


def _surf(name: str, chosen: Sequence[str]) -> Callable[..., Dataset]:
    def features(*, normalise: bool = True) -> Dataset:
        found = locate(SURF)
        parts = []
        for domain in chosen:
            arrays = npz(found / f"{domain}.npz")
            parts.append(Part(arrays["x"], arrays["y"]))
        both = [split(part) for part in parts]
        train, test = (joined([pair[i] for pair in both]) for i in (0, 1))
        return _counts(name, train, test, normalise)

    features.__qualname__ = f"features of {name}"
    features.__doc__ = (
        "800 SURF counts a picture. ``normalise`` divides a row by its sum, then standardises "
        "by the training rows."
    )
    return features


def _counts(name: str, train: Part, test: Part, normalise: bool) -> Dataset:
    xs = [torch.from_numpy(p.x.astype(np.float32)) for p in (train, test)]
    if normalise:
        xs = [x / x.sum(1, keepdim=True).clamp_min(1.0) for x in xs]
        mean, spread = xs[0].mean(0), xs[0].std(0).clamp_min(1e-6)
        xs = [(x - mean) / spread for x in xs]
    ys = [torch.from_numpy(p.y.astype(np.int64)) for p in (train, test)]
    pools = [Pool(x, y) for x, y in zip(xs, ys, strict=True)]
    data = Dataset(name, pools[0], pools[1], 10, (800,))
    if ":" in name:  # one domain is nobody's natural partition
        return data
    assert train.group is not None and test.group is not None, "joined parts have groups"
    groups = [torch.from_numpy(g.astype(np.int64)) for g in (train.group, test.group)]
    return data._replace(group=groups[0], test_group=groups[1])


source(SURF.name, SURF)(_surf(SURF.name, SURF_DOMAINS))
for _domain in SURF_DOMAINS:
    source(f"{SURF.name}:{_domain}")(_surf(f"{SURF.name}:{_domain}", [_domain]))
