"""Small colour photographs: SVHN, CIFAR-10, CIFAR-100, TinyImageNet."""

from __future__ import annotations

import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

from shoal.data.dataset import Dataset, source
from shoal.data.download import About, LocalFiles, Remote, locate
from shoal.data.file_formats import colour
from shoal.data.images import Look, RawSplit, Scale, dataset

ARRAYS = {"arrays": ("train.npz", "test.npz")}
KRIZHEVSKY = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

SVHN = About(
    "svhn", "Street View House Numbers, cropped", "73,257 / 26,032", 10, (3, 32, 32),
    licence="non-commercial use only",
    reference="Netzer et al., Reading Digits in Natural Images, NIPS workshop 2011",
    forms=ARRAYS,
    remotes=(
        Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "train_32x32.mat",
               md5="e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "test_32x32.mat",
               md5="eb5a983be6a315427106f1b164d9cef3"),
    ),
    compact="12,000 / 4,000",
)  # fmt: skip
CIFAR10 = About(
    "cifar10", "CIFAR-10", "50,000 / 10,000", 10, (3, 32, 32), reference=KRIZHEVSKY, forms=ARRAYS,
    remotes=(Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),),
)  # fmt: skip
CIFAR100 = About(
    "cifar100", "CIFAR-100", "50,000 / 10,000", 100, (3, 32, 32), reference=KRIZHEVSKY,
    forms=ARRAYS,
    remotes=(Remote("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    "cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),),
    compact="10,000 / 2,500",
)  # fmt: skip
TINY = About(
    "tiny_imagenet", "TinyImageNet", "100,000 / 10,000", 200, (3, 64, 64),
    licence="that of ImageNet: non-commercial research",
    reference="Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
    remotes=(Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200.zip",
                    md5="90528d7ca1a48142e341f4ef8d21d0de"),),
)  # fmt: skip


def _arrays(found: LocalFiles, label: str = "y") -> tuple[RawSplit, RawSplit]:
    parts = [colour(found / f"{part}.npz") for part in ("train", "test")]
    return RawSplit(parts[0]["x"], parts[0][label]), RawSplit(parts[1]["x"], parts[1][label])


@source("svhn", SVHN)
def svhn(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
         flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """Colour 32x32 digits cut from photographs of houses; class 0 is the digit 0."""
    found = locate(SVHN)
    if found.form == "arrays":
        train, test = _arrays(found)
    else:
        train, test = (_mat(found / f"{part}_32x32.mat") for part in ("train", "test"))
    look = Look(size, channels, scale, flat, limit)
    means, spreads = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return dataset("svhn", train, test, 10, look, means, spreads)


def _mat(path: Path) -> RawSplit:
    """MATLAB arrays X [32, 32, 3, N] and y, in which the digit 0 is class 10."""
    from scipy.io import loadmat

    file = loadmat(path)
    return RawSplit(file["X"].transpose(3, 0, 1, 2), file["y"].reshape(-1) % 10)


@source("cifar10", CIFAR10)
def cifar10(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
            flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """60,000 colour 32x32 photographs (0.7 GB once they are numbers)."""
    found = locate(CIFAR10)
    if found.form == "arrays":
        train, test = _arrays(found)
    else:
        train, test = _binary(found / "cifar-10-binary.tar.gz", 1, 0, ("data_batch", "test_batch"))
    look = Look(size, channels, scale, flat, limit)
    means, spreads = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return dataset("cifar10", train, test, 10, look, means, spreads)


@source("cifar100", CIFAR100)
def cifar100(*, coarse: bool = False, size: int | None = None, channels: int | None = None,
             scale: Scale = "unit", flat: bool = False,
             limit: int | None = None) -> Dataset:  # fmt: skip
    """60,000 colour 32x32 photographs in 100 classes, or 20 superclasses with ``coarse``."""
    found = locate(CIFAR100)
    if found.form == "arrays":
        train, test = _arrays(found, "y_coarse" if coarse else "y")
    else:
        archive = found / "cifar-100-binary.tar.gz"
        train, test = _binary(archive, 2, 0 if coarse else 1, ("train", "test"))
    look = Look(size, channels, scale, flat, limit)
    means, spreads = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return dataset("cifar100", train, test, 20 if coarse else 100, look, means, spreads)


def _binary(
    path: Path, labels: int, column: int, parts: tuple[str, str]
) -> tuple[RawSplit, RawSplit]:
    """The binary version: ``labels`` bytes, then 1,024 bytes each of red, green and blue."""
    rows: dict[str, list[bytes]] = {part: [] for part in parts}
    with tarfile.open(path) as archive:
        members = {Path(m.name).name: m for m in archive.getmembers() if m.name.endswith(".bin")}
        for name in sorted(members):
            part = next((p for p in parts if name.startswith(p)), None)
            file = archive.extractfile(members[name])
            if part is not None and file is not None:
                rows[part].append(file.read())
    found = []
    for part in parts:
        table = np.frombuffer(b"".join(rows[part]), np.uint8).reshape(-1, labels + 3072)
        x = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        found.append(RawSplit(x, table[:, column]))
    return found[0], found[1]


@source("tiny_imagenet", TINY)
def tiny_imagenet(*, size: int | None = None, channels: int | None = None, scale: Scale = "unit",
                  flat: bool = False, limit: int | None = None) -> Dataset:  # fmt: skip
    """110,000 colour 64x64 photographs in 200 classes; the validation part is the test part.

    All of it is 5 GB as numbers; ``limit`` reads fewer.
    """
    with zipfile.ZipFile(locate(TINY) / "tiny-imagenet-200.zip") as archive:
        train, test = _tiny(archive, limit)
    look = Look(size, channels, scale, flat, limit)
    means, spreads = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
    return dataset("tiny_imagenet", train, test, 200, look, means, spreads)


def _tiny(archive: zipfile.ZipFile, limit: int | None) -> tuple[RawSplit, RawSplit]:
    root = "tiny-imagenet-200"
    codes = {c: i for i, c in enumerate(sorted(archive.read(f"{root}/wnids.txt").decode().split()))}
    notes = archive.read(f"{root}/val/val_annotations.txt").decode().splitlines()
    test = [(f"{root}/val/images/{n.split()[0]}", codes[n.split()[1]]) for n in notes]
    train = [
        (name, codes[name.split("/")[2]])
        for name in sorted(archive.namelist())
        if name.startswith(f"{root}/train/") and name.endswith(".JPEG")
    ]
    return _jpegs(archive, train, limit), _jpegs(archive, test, limit)


def _jpegs(archive: zipfile.ZipFile, files: list[tuple[str, int]], limit: int | None) -> RawSplit:
    from PIL import Image

    if limit is not None and limit < len(files):
        keep = np.random.default_rng(0).permutation(len(files))[:limit]
        files = [files[i] for i in np.sort(keep)]
    x = np.empty((len(files), 64, 64, 3), dtype=np.uint8)
    for row, (name, _) in enumerate(files):
        with Image.open(BytesIO(archive.read(name))) as image:
            x[row] = np.asarray(image.convert("RGB"))
    return RawSplit(x, np.array([label for _, label in files]))
