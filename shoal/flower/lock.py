"""One living server a directory: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from shoal.errors import UserError

LAST_WORDS = 20.0  # seconds for a killed process to let go


def hold(path: Path) -> IO[str]:
    """The lock, which says whose it is; refused while another living process has it."""
    file = path.open("a+")
    if not _taken(file):
        file.close()
        raise UserError(f"another server is using {path.parent}")
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def holder(path: Path) -> int | None:
    """The process that holds the lock, if one does."""
    try:
        with path.open("a+") as file:
            if _taken(file):
                return None
            file.seek(0)
            return int(file.read())
    except (OSError, ValueError):
        return None


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
