"""One writer per directory: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from shoal.durable import private
from shoal.errors import UserError

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
