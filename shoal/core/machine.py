"""Cores and memory: how many there are, whose processor it is, tasks that several threads do, what
becomes of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from pathlib import Path
from threading import Condition
from typing import Generic, NamedTuple, TypeVar

from shoal.core.errors import UserError

# ---- cores ---------------------------------------------------------------------------------------
# How many cores there are to use, and sharing them out between processes.


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_to(share: int, shares: int) -> None:
    """Use one of ``shares`` equal parts of the cores, where the system can do that.

    Engines and evaluation use all cores that a process may use; without this, each worker would
    use all of them, and wait for the others.
    """
    if hasattr(os, "sched_setaffinity"):
        free = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, free[share % len(free) :: min(shares, len(free))])


def processor_vendor() -> str:
    """What the processor says of itself: ``GenuineIntel``, ``AuthenticAMD``; "" where the system
    does not tell."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^vendor_id\s*:\s*(\S+)", told, re.MULTILINE)
    return found[1] if found else ""


# ---- threads -------------------------------------------------------------------------------------
# Tasks that several threads do, with results in the order of the tasks.

T = TypeVar("T")
AHEAD = 2  # results per thread that may wait for those before them


class _Failed(NamedTuple):
    error: BaseException


def in_order(tasks: Sequence[Callable[[], T]], pool: Executor, helpers: int) -> Iterator[T]:
    """The results of the tasks, done by this thread and so many of a pool; the first error in that
    order is raised, when nobody works on any task any more.

    This thread works, too, instead of sleeping until the first result is there: threads that are
    woken by one that goes to sleep are put on its core, where they share it for some rounds (W1 on
    two cores: 20 ms instead of 14).

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(1) as pool:
    ...     list(in_order([lambda k=k: k * k for k in range(5)], pool, 1))
    [0, 1, 4, 9, 16]
    """
    board = _Board(tasks, AHEAD * (helpers + 1))
    helping = [pool.submit(board.help) for _ in range(helpers)]
    try:
        for number in range(len(tasks)):
            yield board.result(number)
    finally:
        board.close()
        wait(helping)


class _Board(Generic[T]):
    """Which tasks are taken, and what came of them. Threads share it."""

    def __init__(self, tasks: Sequence[Callable[[], T]], ahead: int) -> None:
        self._tasks, self._ahead = tasks, ahead
        self._next = self._wanted = 0  # not taken yet; whose result is asked for
        self._found: dict[int, T | _Failed] = {}
        self._changed = Condition()

    def help(self) -> None:
        """Do tasks until none is left."""
        while (number := self._take(patient=True)) is not None:
            self._do(number)

    def result(self, number: int) -> T:
        """The result of a task; other tasks are done while it is not there."""
        with self._changed:
            self._wanted = number
            self._changed.notify_all()
        while number not in self._found:
            other = self._take(patient=False)
            if other is not None:
                self._do(other)
                continue
            with self._changed:
                self._changed.wait_for(lambda: number in self._found)
        found = self._found.pop(number)
        if isinstance(found, _Failed):
            raise found.error
        return found

    def close(self) -> None:
        """Nobody wants the rest."""
        with self._changed:
            self._next = len(self._tasks)
            self._changed.notify_all()

    def _take(self, patient: bool) -> int | None:
        """A task for whoever asks; ``patient`` waits while too many results wait."""
        with self._changed:
            while self._next < len(self._tasks):
                if self._next < self._wanted + self._ahead:
                    self._next += 1
                    return self._next - 1
                if not patient:
                    return None
                self._changed.wait()
        return None

    def _do(self, number: int) -> None:
        found: T | _Failed
        try:
            found = self._tasks[number]()
        except KeyboardInterrupt:  # in the thread that asks: it is not kept waiting
            raise
        except BaseException as error:  # raised when its turn comes
            found = _Failed(error)
        with self._changed:
            self._found[number] = found
            self._changed.notify_all()


# ---- allocator -----------------------------------------------------------------------------------
# Parameter numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(threshold: int = 1 << 25) -> bool:
    """Ask the allocator to reuse freed blocks below ``threshold`` bytes; true if it agreed.

    A training step makes the same large temporaries over and over. By default the C library gives
    each one back to the system, and the next one pays for page faults again. Larger blocks (a model
    of ten million parameters) are given back: small ones would settle in the holes that they leave,
    and the process would grow from round to round. Only Linux with glibc is affected; elsewhere
    this does nothing and returns false.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        kept = mallopt(_M_MMAP_THRESHOLD, threshold)
        return bool(mallopt(_M_TRIM_THRESHOLD, 1 << 30) and kept)
    except (OSError, AttributeError):
        return False


_MADV_HUGEPAGE = 14
_LARGE_PAGE = 1 << 21


def use_large_pages(address: int, size: int) -> None:
    """Ask Linux to put a block of memory that is not used yet into pages of 2 MiB.

    A block that is given back to the system is mapped anew every time. In pages of 4 KiB, 44 MB
    take 15 ms to fill for the first time, in large ones 4 (an AMD EPYC).
    """
    first, end = -(-address // _LARGE_PAGE), (address + size) // _LARGE_PAGE
    if end > first and sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            begin, length = first * _LARGE_PAGE, (end - first) * _LARGE_PAGE
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(length), _MADV_HUGEPAGE
            )


# ---- store budget --------------------------------------------------------------------------------
# How many bytes of clients' memories stay in RAM before they go to disk.
#
# A quarter of the machine's memory (2 GiB where that cannot be known), or what ``SHOAL_MEMORY``
# says: a number of bytes, or such as ``512MiB``, ``4GiB``.

VARIABLE = "SHOAL_MEMORY"
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def budget() -> int:
    """The budget of a store that is given none."""
    given = os.environ.get(VARIABLE)
    if given:
        return amount(given)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, OSError, ValueError):
        return 2 * 2**30


def amount(text: str) -> int:
    """Bytes in words.

    >>> amount("512MiB") == 512 * 2**20, amount("1.5 g") == 3 * 2**29, amount("4096")
    (True, True, 4096)
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise UserError(
            f"{VARIABLE} is {text!r}; it must be a number of bytes, such as 4096, 512MiB or 4GiB"
        )
    return int(float(found[1]) * UNITS[found[2].lower()])
