"""How many cores there are to use, and sharing them out between processes."""

from __future__ import annotations

import os


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
