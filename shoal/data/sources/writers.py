"""FEMNIST (one writer a client) and the digits of several worlds, Digit-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from shoal.data import tff
from shoal.data.decode import npz
from shoal.data.images import Look, Part, Scale, dataset
from shoal.data.places import About, Found, locate
from shoal.data.remote import Remote
from shoal.data.sources.registry import Dataset, load, source
from shoal.errors import UserError

FEMNIST = About(
    "femnist", "FEMNIST, one writer a client", "about 745,000 / 82,000, 3,400 writers", 62,
    (1, 28, 28),
    licence="NIST SD 19 is a US-government work; LEAF is BSD-2-Clause",
    reference="Caldas et al., LEAF, arXiv:1812.01097, 2018",
    forms={"arrays": ("femnist.npz",)},
    remotes=(Remote("https://storage.googleapis.com/tff-datasets-public/fed_emnist.sqlite.lzma",
                    "fed_emnist.sqlite.lzma"),),
    compact="41,258 / 4,700, 300 writers",
)  # fmt: skip


@source("femnist", FEMNIST)
def femnist(*, writers: int | None = None, labels: Literal["all", "digits"] = "all",
            size: int | None = None, channels: int | None = None, scale: Scale = "unit",
            flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """Digits, capitals and small letters by writer: 0-9, 10-35 (A-Z), 36-61 (a-z).

    White ink on black, as MNIST (LEAF has it the other way round). ``writers`` keeps the first so
    many; ``labels: digits`` keeps classes 0-9. The files say which rows are for testing.
    """
    if labels not in ("all", "digits"):
        raise UserError(f"labels of data set 'femnist' is {labels!r}; it must be all or digits.")
    found = locate(FEMNIST)
    train, test = _arrays(found) if found.form == "arrays" else _sqlite(found, writers)
    if writers is not None:
        train, test = (p.take(np.flatnonzero(_group(p) < writers)) for p in (train, test))
    if labels == "digits":
        train, test = (p.take(np.flatnonzero(p.y < 10)) for p in (train, test))
    look = Look(size, channels, scale, flat, limit)
    classes = 10 if labels == "digits" else 62
    return dataset("femnist", train, test, classes, look, (0.1733,), (0.3317,))


def _group(part: Part) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    assert part.group is not None, "FEMNIST has writers"
    return part.group


def _arrays(found: Found) -> tuple[Part, Part]:
    file = npz(found / "femnist.npz")
    whole = Part(255 - file["x"], file["y"], file["writer"].astype(np.int64))
    test = file["is_test"].astype(bool)
    return whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))


def _sqlite(found: Found, writers: int | None) -> tuple[Part, Part]:
    path = tff.unpacked(found / "fed_emnist.sqlite.lzma")
    names = tff.clients(path, "train", writers)
    parts = []
    for split in ("train", "test"):
        x, y, group = [], [], []
        for number, name in enumerate(names):
            for row in tff.examples(path, split, name):
                x.append(np.round((1.0 - np.array(row["pixels"])) * 255).astype(np.uint8))
                y.append(int(row["label"][0]))
                group.append(number)
        images = np.stack(x).reshape(-1, 28, 28)
        parts.append(Part(images, np.array(y), np.array(group, dtype=np.int64)))
    return parts[0], parts[1]


def _digits(name: str, origin: str, **options: object) -> Callable[..., Dataset]:
    """One task of Digit-10: grey 32x32 images in [-1, 1], ten digits."""

    def digits(*, channels: int = 1, limit: int | None = None) -> Dataset:
        look = {"size": 32, "channels": channels, "scale": "signed", "limit": limit}
        data = load(origin, **options, **look)
        return data._replace(name=name, group=None, test_group=None)

    digits.__qualname__ = f"task {name}"
    return digits


DIGIT10 = About(
    "digit10",
    "Digit-10: USPS, SVHN, EMNIST digits, MNIST",
    "see its tasks",
    10,
    (1, 32, 32),
    reference="the digit sequence of the SPECIAL paper",
)
# FEMNIST's digits are NIST SD 19 too: the task to name where EMNIST proper is not at hand.
for _task, _origin, _options in (
    ("usps", "usps", {}),
    ("svhn", "svhn", {}),
    ("emnist", "emnist", {"split": "digits"}),
    ("femnist", "femnist", {"labels": "digits"}),
    ("mnist", "mnist", {}),
):
    source(f"digit10:{_task}", DIGIT10)(_digits(f"digit10:{_task}", _origin, **_options))
