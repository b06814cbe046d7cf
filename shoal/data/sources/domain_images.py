"""PACS, VLCS, DN4IL, Office-Caltech."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About, LocalFiles, Remote, locate
from shoal.data.file_formats import by_class, colour, npz, tree
from shoal.data.images import Look, RawSplit, Scale, dataset, joined, split

# ---- domain images -------------------------------------------------------------------------------
# The same classes in several domains: PACS, VLCS, DN4IL.
#
# ``pacs`` has all domains, the domain of a row being its natural client; ``pacs:photo`` is one of
# them, which is how a world names it (``domains: [pacs:sketch, pacs:photo]``).

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
VLCS_DOMAINS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
DN4IL_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

PACS = About(
    "pacs", "PACS: photo, art painting, cartoon, sketch", "9,991, split 80/20", 7, (3, 48, 48),
    licence="none stated; research use",
    reference="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
    forms={"arrays": tuple(f"{d}.npz" for d in PACS_DOMAINS), "folders": PACS_DOMAINS},
    remotes=(Remote(DRIVE + "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", "PACS.zip"),),
)  # fmt: skip
VLCS = About(
    "vlcs", "VLCS: Caltech101, LabelMe, SUN09, VOC2007", "10,729, split 80/20", 5, (3, 48, 48),
    licence="none stated; research use",
    reference="Fang, Xu and Rockmore, Unbiased Metric Learning, ICCV 2013",
    forms={"folders": VLCS_DOMAINS},
    remotes=(Remote(DRIVE + "1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "VLCS.tar.gz",
                    md5="8870171eba660927d9668f4e515928e4"),),
)  # fmt: skip
DN4IL = About(
    "dn4il", "DN4IL: 100 classes of DomainNet in 6 domains", "about 30,000, split 80/20", 100,
    (3, 48, 48),
    licence="that of DomainNet: non-commercial research",
    reference="Gowda, Zonooz and Arani, Dual Cognitive Architecture, TMLR 2023",
    forms={"folders": DN4IL_DOMAINS},
    by_hand="take the DN4IL lists of github.com/NeurAI-Lab/DN4IL-dataset and the images of "
            "DomainNet (ai.bu.edu/M3SDA), one folder a domain with one folder a class",
)  # fmt: skip


def _read(found: LocalFiles, domain: str, classes: Sequence[str] | None, size: int) -> RawSplit:
    """One domain from arrays, from its folder, or from the folder of that name in an archive."""
    if found.form == "arrays":
        arrays = colour(found / f"{domain}.npz")
        return RawSplit(arrays["x"], arrays["y"])
    path = found / domain if found.form == "folders" else next(_archives(found))
    with tree(path) as (names, read):
        if found.form == "official":
            names = [n for n in names if domain.lower() in PurePosixPath(n.lower()).parts]
        if classes is None:
            classes = sorted({PurePosixPath(n).parent.name for n in names})
        return by_class(names, read, classes, size)


def _archives(found: LocalFiles) -> Iterator[Path]:
    return (p for p in sorted(found.folder.iterdir()) if p.suffix in (".zip", ".gz"))


def _register(about: About, domains: Sequence[str], classes: Sequence[str] | None) -> None:
    """The whole set, and each domain by the name ``set:domain``."""

    def maker(name: str, chosen: Sequence[str]) -> Callable[..., Dataset]:
        def images(*, size: int | None = 48, channels: int | None = None, scale: Scale = "unit",
                   flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
            found, side = locate(about), size or 48
            both = [split(_read(found, domain, classes, side)) for domain in chosen]
            look = Look(side, channels, scale, flat, limit)
            train, test = (joined([pair[i] for pair in both]) for i in (0, 1))
            if len(chosen) == 1:  # one domain is nobody's natural partition
                train, test = (part._replace(group=None) for part in (train, test))
            assert about.classes is not None
            means, spreads = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # those of ImageNet
            return dataset(name, train, test, about.classes, look, means, spreads)

        images.__qualname__ = f"images of {name}"
        images.__doc__ = f"{about.title}; resized to 48x48 unless ``size`` says otherwise."
        return images

    source(about.name, about)(maker(about.name, domains))
    for domain in domains:
        name = f"{about.name}:{domain.lower()}"
        source(name)(maker(name, [domain]))


_register(PACS, PACS_DOMAINS, PACS_CLASSES)
_register(VLCS, VLCS_DOMAINS, VLCS_CLASSES)
_register(DN4IL, DN4IL_DOMAINS, None)


# ---- office --------------------------------------------------------------------------------------
# Office-Caltech-10 as SURF features: ten things in four domains (``...:amazon`` is one).

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
            parts.append(RawSplit(arrays["x"], arrays["y"]))
        both = [split(part) for part in parts]
        train, test = (joined([pair[i] for pair in both]) for i in (0, 1))
        return _counts(name, train, test, normalise)

    features.__qualname__ = f"features of {name}"
    features.__doc__ = (
        "800 SURF counts a picture. ``normalise`` divides a row by its sum, then standardises "
        "by the training rows."
    )
    return features


def _counts(name: str, train: RawSplit, test: RawSplit, normalise: bool) -> Dataset:
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
