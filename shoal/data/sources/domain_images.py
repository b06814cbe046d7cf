"""The same classes in several domains: PACS, VLCS, DN4IL.

``pacs`` has all domains, the domain of a row being its natural client; ``pacs:photo`` is one of
them, which is how a world names it (``domains: [pacs:sketch, pacs:photo]``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from shoal.data.decode import colour
from shoal.data.folders import by_class, tree
from shoal.data.images import Look, Part, Scale, dataset, joined, split
from shoal.data.places import About, Found, locate
from shoal.data.remote import Remote
from shoal.data.sources.registry import Dataset, source

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


def _read(found: Found, domain: str, classes: Sequence[str] | None, size: int) -> Part:
    """One domain from arrays, from its folder, or from the folder of that name in an archive."""
    if found.form == "arrays":
        arrays = colour(found / f"{domain}.npz")
        return Part(arrays["x"], arrays["y"])
    path = found / domain if found.form == "folders" else next(_archives(found))
    with tree(path) as (names, read):
        if found.form == "official":
            names = [n for n in names if domain.lower() in PurePosixPath(n.lower()).parts]
        if classes is None:
            classes = sorted({PurePosixPath(n).parent.name for n in names})
        return by_class(names, read, classes, size)


def _archives(found: Found) -> Iterator[Path]:
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
