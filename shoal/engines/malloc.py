"""Keep large temporaries inside the heap of the C library instead of mapping each one afresh."""

from __future__ import annotations

import ctypes
import sys

# Parameter numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory(threshold: int = 1 << 30) -> bool:
    """Ask the allocator to reuse freed blocks below ``threshold`` bytes; true if it agreed.

    A training step makes the same large temporaries over and over. By default the C library gives
    each one back to the system, and the next one pays for page faults again. Only Linux with
    glibc is affected; elsewhere this does nothing and returns false.
    """
    if not sys.platform.startswith("linux"):
        return False
    # Both fields are C ints, whatever the size of a pointer.
    limit = min(threshold, 2**31 - 1)
    try:
        mallopt = ctypes.CDLL(None).mallopt
        kept = mallopt(_M_MMAP_THRESHOLD, limit)
        return bool(mallopt(_M_TRIM_THRESHOLD, limit) and kept)
    except (OSError, AttributeError):
        return False


__all__ = ["keep_freed_memory"]
