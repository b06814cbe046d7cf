"""Bounds on files of others, writes that are complete or did not happen, text formats, one writer
per directory.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import yaml

from shoal.core.errors import UserError

# ---- untrusted -----------------------------------------------------------------------------------
# Files that others have made: how large they may become, before they have become it.
#
# A file of some kilobytes can hold gigabytes: packed zeros, or a value that names itself again and
# again. What is read from one is bounded by how long it is on disk, and nothing in it is run.

PLACES = 1_000_000  # of a value, aliases written out
RATIO, FREE = 100, 2 << 30  # text packs to a tenth; what stays below two gigabytes does no harm


def room(packed: int) -> int:
    """Bytes to which a file of so many may unpack.

    >>> room(1000) == FREE, room(1 << 30) == 100 << 30
    (True, True)
    """
    return max(FREE, RATIO * packed)


def check_room(unpacked: int, packed: int, where: object) -> None:
    """Refuse what says itself that it unpacks to too much."""
    if unpacked > room(packed):
        raise UserError(
            f"{where} would unpack to {unpacked:,} bytes from {packed:,}, and at most "
            f"{room(packed):,} are read; unpack it yourself if you trust it"
        )


class Within(io.RawIOBase):
    """A stream that gives up after ``most`` bytes, whatever its header says."""

    def __init__(self, source: IO[bytes], most: int, where: object) -> None:
        self.source, self.left, self.where = source, most, where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # one byte more than is left tells the end from too much
        content = self.source.read(min(len(buffer), self.left + 1))
        if len(content) > self.left:
            raise UserError(
                f"{self.where} unpacks to more than is read from a file of its length; unpack it "
                "yourself if you trust it"
            )
        self.left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self.source.close()
        super().close()


def within(source: IO[bytes], packed: int, where: object) -> io.BufferedReader:
    """A packed stream, bounded by the length of its file."""
    return io.BufferedReader(Within(source, room(packed), where))


def branches(value: Any) -> Iterable[Any]:
    """What a plain value is made of."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def check_unfolds(value: Any, inner: Callable[[Any], Iterable[Any]] = branches) -> None:
    """Refuse a value that is small because it holds the same thing again and again, or itself.

    >>> check_unfolds([[1, 2], {"a": 3}])
    """
    if _size(value, inner, {}) > PLACES:
        raise UserError(f"it has aliases that unfold to more than {PLACES:,} values")


def _size(value: Any, inner: Callable[[Any], Iterable[Any]], sizes: dict[int, int]) -> int:
    """Values in a value; each is looked at once and added as often as it is named."""
    known = sizes.get(id(value))
    if known is None:
        sizes[id(value)] = PLACES + 1  # seen again from within itself: there is no end to it
        known = 1 + sum(_size(item, inner, sizes) for item in inner(value))
        sizes[id(value)] = known
    return known


# ---- durable -------------------------------------------------------------------------------------
# Writes that are complete or did not happen: under a new name, synced, then renamed.


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


# ---- lock ----------------------------------------------------------------------------------------
# One writer per directory: a lock that ends with the process that holds it.

LAST_WORDS = 20.0  # seconds for a killed process to let go


def hold(path: Path, directory: Path | None = None) -> IO[str]:
    """The lock, which says whose it is; refused while another living process has it.

    ``directory`` is what the lock protects: the one that it is in, unless given.
    """
    file = open(path, "a+", opener=private)  # noqa: SIM115
    until = time.monotonic() + LAST_WORDS
    while not _taken(file):
        owner = _owner(file)
        # children of a process that was killed may have the lock for a moment longer
        if owner is None or _lives(*owner) or time.monotonic() > until:
            file.close()
            raise UserError(_busy(directory or path.parent, owner))
        time.sleep(0.05)
    file.truncate(0)
    file.write(f"{os.getpid()} {socket.gethostname()}")
    file.flush()
    return file


def check_free(path: Path, directory: Path | None = None) -> None:
    """Refuse while a living process holds the lock."""
    if path.exists():
        hold(path, directory).close()


def holder(path: Path) -> int | None:
    """The process that holds the lock, if one does."""
    try:
        with path.open("a+") as file:
            owner = None if _taken(file) else _owner(file)
            return None if owner is None else owner[0]
    except OSError:
        return None


def _owner(file: IO[str]) -> tuple[int, str] | None:
    """Process and host that the lock names."""
    file.seek(0)
    process, _, host = file.read().partition(" ")
    return (int(process), host) if process.isdigit() else None


def _lives(process: int, host: str) -> bool:
    """Whether the process is there; those of other machines are."""
    if host not in ("", socket.gethostname()):
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _busy(directory: Path, owner: tuple[int, str] | None) -> str:
    who = "another process" if owner is None else f"process {owner[0]}"
    where = f" on {owner[1]}" if owner is not None and owner[1] else ""
    return f"{directory} is in use by {who}{where}; wait until it has ended, or end it first"


def end_holder(path: Path) -> None:
    """Kill the process that holds the lock, and wait until it has let go."""
    until = time.monotonic() + LAST_WORDS
    while (process := holder(path)) is not None:
        if time.monotonic() > until:
            raise UserError(f"process {process} does not let go of {path}")
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _taken(file: IO[str]) -> bool:
    """Whether the lock is ours now."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True  # no such locks on this system
    except OSError:
        return False
    return True


def asset(package: str, name: str) -> str:
    """The text of a file that comes with a package, in its folder ``assets``."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        dict(values), sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
    )


def dump_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: what is not finite becomes null.

    >>> dump_json({"loss": float("nan"), "cohort": (1, 2)})
    '{"loss": null, "cohort": [1, 2]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
