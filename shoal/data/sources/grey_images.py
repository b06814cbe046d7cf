"""Digits, MNIST, Fashion-MNIST, EMNIST, USPS."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About, LocalFiles, Remote, locate
from shoal.data.file_formats import idx, npz
from shoal.data.images import Look, RawSplit, Scale, dataset

# ---- grey ----------------------------------------------------------------------------------------
# Grey images of handwriting and clothes: MNIST, Fashion-MNIST, EMNIST, USPS.

ARRAYS = {"arrays": ("train.npz", "test.npz")}
IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)


def _idx_remotes(base: str, sums: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(Remote(base + file, file, md5=sum_) for file, sum_ in zip(IDX, sums, strict=True))


MNIST = About(
    "mnist", "MNIST handwritten digits", "60,000 / 10,000", 10, (1, 28, 28),
    licence="usually given as CC BY-SA 3.0",
    reference="LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998",
    forms=ARRAYS,
    remotes=_idx_remotes("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST_MD5),
)  # fmt: skip
FASHION = About(
    "fashion_mnist", "Fashion-MNIST", "60,000 / 10,000", 10, (1, 28, 28),
    licence="MIT",
    reference="Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
    forms=ARRAYS,
    remotes=_idx_remotes(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION_MD5
    ),
)  # fmt: skip
EMNIST = About(
    "emnist", "EMNIST letters or digits", "124,800 / 20,800 or 240,000 / 40,000", 26, (1, 28, 28),
    licence="US-government work",
    reference="Cohen et al., EMNIST: an extension of MNIST to handwritten letters, 2017",
    remotes=(Remote("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "gzip.zip",
                    md5="58c8d27c78d21e728a6bc7b3cc06412e"),),
)  # fmt: skip
USPS = About(
    "usps", "USPS handwritten digits", "7,291 / 2,007", 10, (1, 16, 16),
    licence="none stated; research use",
    reference="Hull, A Database for Handwritten Text Recognition Research, 1994",
    forms=ARRAYS,
    remotes=tuple(
        Remote(f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/{file}", file,
               md5=sum_)
        for file, sum_ in (("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
                           ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"))
    ),
)  # fmt: skip


def arrays_or_idx(found: LocalFiles) -> tuple[RawSplit, RawSplit]:
    """Training and test part from ``.npz`` files, or from the four IDX files of MNIST."""
    if found.form == "arrays":
        parts = [npz(found / f"{part}.npz") for part in ("train", "test")]
        return RawSplit(parts[0]["x"], parts[0]["y"]), RawSplit(parts[1]["x"], parts[1]["y"])
    train_x, train_y, test_x, test_y = (idx(gzip.decompress((found / f).read_bytes())) for f in IDX)
    return RawSplit(train_x, train_y), RawSplit(test_x, test_y)


@source("mnist", MNIST)
def mnist(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
          flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """70,000 grey 28x28 digits, white on black. ``standard`` is (0.1307, 0.3081)."""
    train, test = arrays_or_idx(locate(MNIST))
    look = Look(size, channels, scale, flat, limit)
    return dataset("mnist", train, test, 10, look, (0.1307,), (0.3081,))


@source("fashion_mnist", FASHION)
def fashion_mnist(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
                  flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """70,000 grey 28x28 pictures of clothes. ``standard`` is (0.2861, 0.3530)."""
    train, test = arrays_or_idx(locate(FASHION))
    look = Look(size, channels, scale, flat, limit)
    return dataset("fashion_mnist", train, test, 10, look, (0.2861,), (0.3530,))


@source("emnist", EMNIST)
def emnist(*, split: Literal["letters", "digits"] = "letters", size: int | None = None,
           channels: int | None = None, scale: Scale = "unit", flat: bool = False,
           limit: int | None = None) -> Dataset:  # fmt: skip
    """The splits of NIST SD 19 by Cohen et al.; letters have 26 classes (cases merged), a = 0.

    Images are stored transposed and are turned here. ``standard`` is (0.1722, 0.3309) for letters
    and (0.1733, 0.3317) for digits, as commonly quoted.
    """
    if split not in ("letters", "digits"):
        raise UserError(f"split of data set 'emnist' is {split!r}; it must be letters or digits.")
    train, test = (_emnist(locate(EMNIST) / "gzip.zip", split, p) for p in ("train", "test"))
    classes, mean, spread = (26, 0.1722, 0.3309) if split == "letters" else (10, 0.1733, 0.3317)
    look = Look(size, channels, scale, flat, limit)
    return dataset("emnist", train, test, classes, look, (mean,), (spread,))


def _emnist(path: Path, split: str, part: str) -> RawSplit:
    with zipfile.ZipFile(path) as archive:
        stem = f"gzip/emnist-{split}-{part}"
        x = idx(gzip.decompress(archive.read(f"{stem}-images-idx3-ubyte.gz")))
        y = idx(gzip.decompress(archive.read(f"{stem}-labels-idx1-ubyte.gz")))
    return RawSplit(x.transpose(0, 2, 1), y - (1 if split == "letters" else 0))


@source("usps", USPS)
def usps(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
         flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """9,298 grey 16x16 digits from envelopes, white on black; official split and order."""
    found = locate(USPS)
    if found.form == "arrays":
        train, test = arrays_or_idx(found)
    else:
        train, test = (_usps(found / file) for file in ("usps.bz2", "usps.t.bz2"))
    look = Look(size, channels, scale, flat, limit)
    return dataset("usps", train, test, 10, look, (0.2469,), (0.3842,))


def _usps(path: Path) -> RawSplit:
    """LIBSVM rows ``label 1:v 2:v ...`` with labels from 1 and v in [-1, 1], cut to bytes."""
    rows = [line.split() for line in bz2.decompress(path.read_bytes()).decode().splitlines()]
    values = np.array([[float(item.split(":")[1]) for item in row[1:]] for row in rows])
    x = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16)
    return RawSplit(x, np.array([int(row[0]) - 1 for row in rows]))


# ---- digits --------------------------------------------------------------------------------------
# The UCI handwritten digits that ship with scikit-learn: no download.

DIGITS = About(
    "digits", "UCI handwritten digits", "1,437 / 360", 10, (64,), "CC BY 4.0",
    "Alpaydin and Kaynak, UCI, 1998",
)  # fmt: skip


@source("digits", DIGITS)
def digits(*, flat: bool = True) -> Dataset:
    """1,797 grey 8x8 digits in 10 classes, scaled to [0, 1].

    ``flat`` gives 64 features a row, otherwise images (1, 8, 8). The split is 80/20, stratified,
    and always the same: ``digits_split.txt`` has the rows of both, in order, as scikit-learn's
    ``train_test_split`` drew them with ``random_state=0``.

    Reference: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (the
    test half of it, which is what scikit-learn carries).
    """
    table = _table()
    train, test = (
        [int(row) for row in line.split()]
        for line in Path(__file__).with_name("digits_split.txt").read_text().splitlines()
    )
    shape = (64,) if flat else (1, 8, 8)

    def pool(rows: list[int]) -> Pool:
        x = torch.as_tensor(table[rows, :64] / 16.0, dtype=torch.float32)
        return Pool(x.reshape(-1, *shape), torch.as_tensor(table[rows, 64], dtype=torch.int64))

    return Dataset("digits", pool(train), pool(test), 10, shape)


def _table() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """``[1797, 65]`` pixels and label. Its file is read without importing scikit-learn, which
    takes longer than a short run; where the file has moved, scikit-learn is asked after all."""
    spec = find_spec("sklearn")
    file = Path((spec and spec.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.column_stack([x, y])
