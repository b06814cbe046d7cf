"""Folders and archives of images, one folder a class."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from shoal.data.images import Bytes, Part
from shoal.errors import UserError
from shoal.untrusted import check_room, within

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


def by_class(names: Iterable[str], read: Read, classes: Sequence[str], size: int | None) -> Part:
    """Images whose folder is one of ``classes``; the class is the folder's number there."""
    code = {name.lower(): number for number, name in enumerate(classes)}
    chosen = [n for n in names if PurePosixPath(n).parent.name.lower() in code]
    if not chosen:
        raise UserError(f"there are no images in folders called {', '.join(classes)}.")
    labels = [code[PurePosixPath(n).parent.name.lower()] for n in chosen]
    return Part(pixels(chosen, read, size), np.array(labels))
