"""Random numbers of one member at the price of a few multiplications, and nothing kept.

The keys are those of :func:`shoal.rng.keys`; plain integers are ten times quicker for one of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.rng import Purpose

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_S11, _S27, _S30, _S31 = (np.uint64(shift) for shift in (11, 27, 30, 31))
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
Words = NDArray[np.uint64]


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fold(seed: int, purpose: Purpose, *parts: int) -> int:
    """The same number as ``shoal.rng.keys(seed, purpose, *parts)[0]``.

    >>> from shoal.rng import keys
    >>> fold(3, Purpose.WORLD, 1, 2) == int(keys(3, Purpose.WORLD, 1, 2)[0])
    True
    """
    out = _mix((seed + _GOLDEN) & _MASK)
    for part in (int(purpose), *parts):
        out = _mix((out * 3 + part + _GOLDEN) & _MASK)
    return out


def counters(width: int) -> Words:
    """What :func:`uniforms` needs for ``width`` numbers; made once, used for every member."""
    return np.arange(1, width + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def uniforms(key: int, counter: Words) -> NDArray[np.float64]:
    """Numbers in (0, 1), as ``shoal.rng.uniform`` of one key."""
    z = counter + np.uint64(key)
    z ^= z >> _S30
    z *= _M1
    z ^= z >> _S27
    z *= _M2
    z ^= z >> _S31
    z >>= _S11
    return (z.astype(np.float64) + 0.5) * 2.0**-53


def rank(key: int, member: int, members: int) -> int:
    """Where ``member`` stands in a random order of ``range(members)`` that is never written down.

    A Feistel network of four rounds on the next power of four, applied until the result is
    below ``members`` (cycle walking): a bijection, at most four walks on average.

    >>> sorted(rank(7, m, 10) for m in range(10)) == list(range(10))
    True
    """
    half = max(1, ((members - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = member
    while True:
        left, right = value >> half, value & mask
        for turn in range(4):
            left, right = right, left ^ (_mix((key + turn * _GOLDEN + right) & _MASK) & mask)
        value = (left << half) | right
        if value < members:
            return value
