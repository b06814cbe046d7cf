"""IDX, NPZ, CSV, image folders, TFF's SQLite; nothing executes."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import shutil
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.files import check_room, within
from shoal.data.download import cache_root
from shoal.data.images import Bytes, RawSplit

# ---- decode --------------------------------------------------------------------------------------
# Readers of file formats. None of them runs code that a file brings: no pickle anywhere.

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


# ---- folders -------------------------------------------------------------------------------------
# Folders and archives of images, one folder a class.

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

Read = Callable[[str], bytes]


def is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not PurePosixPath(name).name.startswith(".")


@contextmanager
def tree(path: Path) -> Iterator[tuple[list[str], Read]]:
    """Sorted names of the images in a folder, .zip or .tar(.gz), and a function to read one."""
    if path.is_dir():
        names = [p.relative_to(path).as_posix() for p in path.rglob("*") if is_image(p.name)]
        yield sorted(names), lambda name: (path / name).read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check(path, [entry.file_size for entry in archive.infolist()])
            yield sorted(n for n in archive.namelist() if is_image(n)), archive.read
    else:
        with _plain(path) as plain:
            if not tarfile.is_tarfile(plain):
                raise UserError(f"{path} is neither a folder nor a zip or tar archive.")
            with tarfile.open(fileobj=plain) as packed:
                members = packed.getmembers()
                _check(path, [m.size for m in members])
                names = sorted(m.name for m in members if m.isfile() and is_image(m.name))
                yield names, lambda name: _member(packed, name)


def _check(path: Path, sizes: list[int]) -> None:
    check_room(sum(sizes), path.stat().st_size, path)


PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}


@contextmanager
def _plain(path: Path) -> Iterator[IO[bytes]]:
    """A tar archive's bytes; packed ones are unpacked once, so that they have a bound."""
    with path.open("rb") as file, TemporaryFile() as spool:
        opener = PACKED.get(file.read(2))
        file.seek(0)
        if opener is None:
            yield file
            return
        try:
            whole: Any = opener(file, "rb")
            shutil.copyfileobj(within(whole, path.stat().st_size, path), spool, 1 << 20)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"{path} cannot be unpacked ({error}).") from None
        spool.seek(0)
        yield spool


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, "only files are listed"
    return file.read()


def pixels(names: Sequence[str], read: Read, size: int | None) -> Bytes:
    """The images as RGB bytes [N, H, W, 3], resized (bicubic) to ``size`` where given."""
    from PIL import Image, UnidentifiedImageError

    rows: list[Bytes] = []
    for name in names:
        try:
            with Image.open(BytesIO(read(name))) as image:
                shown = image.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise UserError(f"{name} is not an image that can be read ({error}).") from None
        if size is not None and shown.size != (size, size):
            shown = shown.resize((size, size), Image.Resampling.BICUBIC)
        rows.append(np.asarray(shown))
        if rows[-1].shape != rows[0].shape:
            high, wide = rows[-1].shape[:2]
            raise UserError(
                f"{name} is {wide}x{high} but {names[0]} is {rows[0].shape[1]}x{rows[0].shape[0]}; "
                f"give a size to bring all images to."
            )
    return np.stack(rows)


def by_class(
    names: Iterable[str], read: Read, classes: Sequence[str], size: int | None
) -> RawSplit:
    """Images whose folder is one of ``classes``; the class is the folder's number there."""
    code = {name.lower(): number for number, name in enumerate(classes)}
    chosen = [n for n in names if PurePosixPath(n).parent.name.lower() in code]
    if not chosen:
        raise UserError(f"there are no images in folders called {', '.join(classes)}.")
    labels = [code[PurePosixPath(n).parent.name.lower()] for n in chosen]
    return RawSplit(pixels(chosen, read, size), np.array(labels))


# ---- tff -----------------------------------------------------------------------------------------
# Data by client as TensorFlow Federated publishes it: SQLite with serialised examples.
#
# The table ``examples`` has the columns ``split_name``, ``client_id`` and
# ``serialized_example_proto``; the last is a ``tf.train.Example``, read here without TensorFlow.

Feature = list[Any]


def unpacked(path: Path) -> Path:
    """The ``.sqlite`` beside a ``.sqlite.lzma``, unpacked once."""
    if path.suffix != ".lzma":
        return path
    target = path.with_suffix("")
    if not target.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{target.name}.")
        try:
            packed = path.stat().st_size
            with os.fdopen(handle, "wb") as out, within(lzma.open(path), packed, path) as whole:
                shutil.copyfileobj(whole, out, 1 << 20)
            os.replace(temporary, target)
        except (lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path} cannot be unpacked ({error}); fetch it again.") from None
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def clients(path: Path, split: str, count: int | None = None) -> list[str]:
    """The first ``count`` clients of a split, in the order of their names."""
    query = "SELECT DISTINCT client_id FROM examples WHERE split_name = ? ORDER BY client_id"
    with closing(_open(path)) as file:
        found = [row[0] for row in file.execute(query, (split,))]
    return found if count is None else found[:count]


def examples(path: Path, split: str, client: str) -> Iterator[dict[str, Feature]]:
    """What a client has in a split."""
    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
        "ORDER BY rowid"
    )
    with closing(_open(path)) as file:
        for (blob,) in file.execute(query, (split, client)):
            yield example(bytes(blob))


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def example(blob: bytes) -> dict[str, Feature]:
    """The features of a serialised ``tf.train.Example``.

    Example { Features features = 1 }; Features { map<string, Feature> feature = 1 };
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each list { value = 1 }.
    """
    found: dict[str, Feature] = {}
    for _, features in _fields(blob):
        for _, entry in _fields(features):
            pair = dict(_fields(entry))
            found[pair[1].decode()] = _values(pair.get(2, b""))
    return found


def _values(feature: bytes) -> Feature:
    out: Feature = []
    for kind, listed in _fields(feature):
        for _, value in _fields(listed):
            if kind == 1:
                out.append(value)
            elif kind == 2:
                out += struct.unpack(f"<{len(value) // 4}f", value)
            else:
                out += _varints(value)
    return out


def _fields(blob: bytes) -> Iterator[tuple[int, bytes]]:
    """Field numbers and raw contents; numbers that stand alone come as their bytes."""
    at = 0
    while at < len(blob):
        key, at = _varint(blob, at)
        start = at
        if key & 7 == 2:
            size, start = _varint(blob, at)
            at = start + size
        elif key & 7 == 5:
            at += 4
        elif key & 7 == 0:
            _, at = _varint(blob, at)
        else:
            raise UserError("a serialised example has a field of an unknown kind.")
        yield key >> 3, blob[start:at]


def _varint(blob: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = blob[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varints(blob: bytes) -> Iterator[int]:
    at = 0
    while at < len(blob):
        value, at = _varint(blob, at)
        yield value - (1 << 64) if value >> 63 else value
