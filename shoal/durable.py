"""Writes that are complete or did not happen: under a new name, synced, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import UserError


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """The whole file, or the one that was there before.

    It is for its owner's eyes; ``shared`` files (pages, pictures) are as the user's mask says.
    """
    write_bytes(path, text.encode("utf-8"), shared=shared)


def write_bytes(path: Path, content: bytes, *, shared: bool = False) -> None:
    new = path.with_name(f".{path.name}.new")
    with removed_on_failure(new):
        new.unlink(missing_ok=True)  # with whatever mode an interrupted write gave it
        with open(new, "wb", opener=None if shared else private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(new, path)


def private(path: str, flags: int) -> int:
    """Opens a file so that, if it is new, nobody but its owner can read it."""
    return os.open(path, flags, 0o600)


def private_folder(path: Path) -> None:
    """A folder that nobody but its owner looks into; one that is there stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def removed_on_failure(new: Path) -> Iterator[None]:
    """A file or folder that could not be finished is not left behind."""
    try:
        yield
    except BaseException:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            with suppress(OSError):
                new.unlink(missing_ok=True)
        raise


def disk_is_full(error: BaseException) -> bool:
    """Whether a write failed for want of space, whoever says it.

    >>> disk_is_full(OSError(errno.ENOSPC, "No space left on device"))
    True
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error)  # libraries that write without Python


def check_writable(path: Path) -> None:
    """Refuse a path at which nothing can be made; nothing stays behind."""
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    if above == path and not path.is_dir():
        return  # somebody else's sentence
    if not above.is_dir():
        raise UserError(f"{path} cannot be made, for {above} is a file; give another directory")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".shoal-", dir=above))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(
            f"{path} cannot be written to ({above}: {reason}); give another directory"
        ) from None


def put_in_place(new: Path, path: Path) -> None:
    """Give a synced file its name, durably."""
    os.replace(new, path)
    sync_directory(path.parent)


def link(old: Path, path: Path) -> None:
    """A second name for a synced file that is never written again; a copy where there are no
    hard links. The caller syncs the directory."""
    try:
        os.link(old, path)
    except OSError:
        shutil.copyfile(old, path)
        sync_file(path)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make renames inside a directory durable (where the system lets a directory be opened)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
