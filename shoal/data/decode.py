"""Readers of file formats. None of them runs code that a file brings: no pickle anywhere."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.places import cache_root
from shoal.errors import UserError
from shoal.untrusted import check_room, within

Array = NDArray[Any]


def npz(path: Path) -> dict[str, Array]:
    """All arrays of an ``.npz`` file (its members may be LZMA-compressed)."""
    try:
        with zipfile.ZipFile(path) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
        check_room(unpacked, path.stat().st_size, path)
        with np.load(path, allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("it holds files that are no arrays")
        return found
    except UserError:
        raise
    except Exception as error:  # headers say anything: shapes, types, methods of packing
        raise UserError(
            f"{path} cannot be read as arrays ({' '.join(str(error).split())})."
        ) from None


def npy(path: Path) -> Array:
    """The array of an ``.npy`` file, which is as long as its header says before it is read."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it is an archive")
        return np.array(found)
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as an array ({' '.join(str(error).split())})."
        ) from None


def rgb(planes: Array) -> NDArray[np.uint8]:
    """Colour images [N, H, W, 3] from planes G, R-G, B-G differenced down and across, [3, N, H, W].

    >>> rgb(np.array([[[[5]]], [[[2]]], [[[250]]]], dtype=np.uint8)).tolist()
    [[[[7, 5, 255]]]]
    """
    p = np.cumsum(np.cumsum(planes, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    return np.stack([p[1] + p[0], p[0], p[2] + p[0]], axis=-1)


def colour(path: Path) -> dict[str, Array]:
    """An ``.npz`` whose ``xd`` becomes ``x``; the decoded pixels are kept in the cache."""
    stamp = path.stat()
    kept = cache_root() / "decoded" / f"{path.parent.name}-{path.stem}-{stamp.st_size}.npz"
    if kept.exists() and kept.stat().st_mtime >= stamp.st_mtime:
        return npz(kept)
    arrays = npz(path)
    arrays["x"] = rgb(arrays.pop("xd"))
    if len(arrays["x"]) > 5000:
        keep(kept, arrays)
    return arrays


def keep(path: Path, arrays: dict[str, Array]) -> None:
    """Write an ``.npz`` in one step; a cache that cannot be written is no reason to stop."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(handle, "wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except OSError:
        return


def idx(data: bytes) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes (the format of MNIST).

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [7, 9]
    """
    kind, dims = data[2], data[3]
    if data[:2] != b"\0\0" or kind != 8:
        raise UserError("this is not an IDX file of bytes, though its name says so.")
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dims).reshape(shape)


def opened(path: Path) -> IO[bytes]:
    """A file, unpacked on the way if it ends in .gz, .xz or .lzma."""
    if path.suffix == ".gz":
        return within(gzip.open(path, "rb"), path.stat().st_size, path)  # type: ignore[arg-type]
    if path.suffix in (".xz", ".lzma"):
        return within(lzma.open(path, "rb"), path.stat().st_size, path)
    return path.open("rb")


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, packed or not, without their ends."""
    with opened(path) as raw:
        for line in TextIOWrapper(raw, "utf-8", newline="\n"):
            yield line.rstrip("\n")


def records(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in lines(path) if line]


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file."""
    found = csv.reader(lines(path))
    return next(found), list(found)
