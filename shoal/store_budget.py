"""How many bytes of clients' memories stay in RAM before they go to disk.

A quarter of the machine's memory (2 GiB where that cannot be known), or what ``SHOAL_MEMORY`` says:
a number of bytes, or such as ``512MiB``, ``4GiB``.
"""

from __future__ import annotations

import os
import re

from shoal.errors import UserError

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
