"""Random numbers as a function of what they are for, never of the order they are drawn in.

A key is folded from ``(seed, purpose, round, client, epoch, step)``; numbers come from hashing the
key with a counter (SplitMix64). The same key gives the same numbers on every engine, in any order,
for one client or for a whole cohort at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What random numbers are drawn for; a new use gets a new number, old ones never change."""

    MODEL = 1
    PARTITION = 2
    WORLD = 3
    COHORT = 4
    ORDER = 5
    NOISE = 6
    VALIDATION = 7
    DATA = 8
    PART = 9
    HELD_OUT = 10


def _mix(z: Keys) -> Keys:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def keys(seed: int, purpose: Purpose, *parts: int | Sequence[int] | npt.NDArray[np.int64]) -> Keys:
    """One key, or one a client when a part is a sequence.

    >>> a, b = keys(0, Purpose.ORDER, 3, [10, 11])
    >>> bool(a == keys(0, Purpose.ORDER, 3, 10)[0]), bool(a == b)
    (True, False)
    """
    with np.errstate(over="ignore"):
        out = _mix(np.array([seed], dtype=np.int64).astype(np.uint64) + _GOLDEN)
        for part in (int(purpose), *parts):
            value = np.atleast_1d(np.asarray(part, dtype=np.int64)).astype(np.uint64)
            out = _mix(out * np.uint64(3) + value + _GOLDEN)
    return out


def bits(key: Keys, width: int) -> npt.NDArray[np.uint64]:
    """``[len(key), width]`` random 64-bit words."""
    with np.errstate(over="ignore"):
        counter = np.arange(1, width + 1, dtype=np.uint64) * _GOLDEN
        return _mix(key[:, None] + counter[None, :])


def uniform(key: Keys, width: int) -> npt.NDArray[np.float64]:
    """Numbers in (0, 1)."""
    words = bits(key, width) >> np.uint64(11)
    return (words.astype(np.float64) + 0.5) * 2.0**-53


def normal(key: Keys, width: int) -> npt.NDArray[np.float64]:
    """Standard normal numbers (Box-Muller)."""
    half = (width + 1) // 2
    u = uniform(key, 2 * half)
    radius = np.sqrt(-2.0 * np.log(u[:, :half]))
    angle = 2.0 * np.pi * u[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :width]


def permutations(
    key: Keys, counts: npt.NDArray[np.int64], most: int | None = None
) -> npt.NDArray[np.int64]:
    """Row c starts with a permutation of ``range(counts[c])``; the rest of the row is padding.

    With ``most``, only the first so many columns: the same numbers without sorting the rest.

    >>> p = permutations(keys(0, Purpose.ORDER, [1, 2]), np.array([3, 5]))
    >>> sorted(p[0, :3].tolist()), sorted(p[1].tolist())
    ([0, 1, 2], [0, 1, 2, 3, 4])
    >>> bool((permutations(keys(0, Purpose.ORDER, [1, 2]), np.array([3, 5]), 2) == p[:, :2]).all())
    True
    """
    width = int(counts.max(initial=0))
    words = bits(key, width)
    words[np.arange(width)[None, :] >= counts[:, None]] = np.iinfo(np.uint64).max
    if most is None or 2 * most > width or most > int(counts.min()):
        return np.argsort(words, axis=1, kind="stable")[:, :most]
    smallest = np.argpartition(words, most, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(words, smallest, 1), axis=1)
    return np.take_along_axis(smallest, order, 1)


def sample(key: Keys, population: int, size: int) -> npt.NDArray[np.int64]:
    """``size`` different numbers below ``population``, sorted; memory grows with ``size`` only."""
    if 3 * size >= population:
        order = permutations(key[:1], np.array([population]))[0, :size]
        return np.sort(order)
    chosen: dict[int, None] = {}
    block = 0
    while len(chosen) < size:
        fresh = uniform(_mix(key[:1] + np.uint64(block)), 2 * size)[0]
        for value in (fresh * population).astype(np.int64).tolist():
            if len(chosen) < size:
                chosen.setdefault(value)
        block += 1
    return np.sort(np.fromiter(chosen, dtype=np.int64))


def generator(seed: int, purpose: Purpose, *parts: int) -> np.random.Generator:
    """A numpy generator for set-up work (partitions, worlds), where speed does not matter."""
    return np.random.default_rng([int(k) for k in keys(seed, purpose, *parts)])
