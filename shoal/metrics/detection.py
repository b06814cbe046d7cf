"""Whether a detector notices what changed, and how soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Detection(NamedTuple):
    """``precision`` is the share of the notices that are hits, ``recall`` the share of the shifts
    that are noticed (None: there were none), ``delay`` the mean number of rounds from a shift to
    its hit (0: noticed at the end of the very round it came in)."""

    shifts: int
    notices: int
    hits: int
    precision: float | None
    recall: float | None
    delay: float | None


def detection(
    shifts: Sequence[int], notices: Sequence[int], rounds: int, window: int | None = None
) -> Detection:
    """The first notice from a shift on, before the next shift and less than ``window`` rounds
    after it (None: no limit), is its hit. Every other notice is a false alarm, the second for one
    shift too. A shift in round 0 is the start, and none.

    >>> detection([10, 20], [5, 12, 13, 21], 30)
    Detection(shifts=2, notices=4, hits=2, precision=0.5, recall=1.0, delay=1.5)
    """
    starts = sorted({s for s in shifts if 0 < s < rounds})
    delays = []
    for start, following in zip(starts, [*starts[1:], rounds], strict=False):
        end = following if window is None else min(following, start + window)
        first = next((n for n in sorted(notices) if start <= n < end), None)
        if first is not None:
            delays.append(first - start)
    hits = len(delays)
    return Detection(
        len(starts),
        len(notices),
        hits,
        hits / len(notices) if notices else None,
        hits / len(starts) if starts else None,
        sum(delays) / hits if hits else None,
    )
