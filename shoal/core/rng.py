"""Random numbers by what they are for: keyed, per member, and torch's own drawn from ours."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from torch import Tag
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.core.errors import UserError

# ---- rng -----------------------------------------------------------------------------------------
# Random numbers as a function of what they are for, never of the order they are drawn in.
#
# A key is folded from ``(seed, purpose, round, client, epoch, step)``; numbers come from hashing
# the key with a counter (SplitMix64). The same key gives the same numbers on every engine, in any
# order, for one client or for a whole cohort at once.

Keys = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What random numbers are drawn for; a new use gets a new number, old ones never change."""

    MODEL = 1
    PARTITION = 2
    WORLD = 3  # then what of it: ``grep -rn Purpose.WORLD shoal`` shows numbers that are in use
    COHORT = 4
    ORDER = 5
    NOISE = 6
    VALIDATION = 7
    DATA = 8
    PART = 9
    HELD_OUT = 10
    LAYER = 11
    AUGMENT = 12


def _mix(z: Keys) -> Keys:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def keys(seed: int, purpose: Purpose, *parts: int | Sequence[int] | npt.NDArray[np.int64]) -> Keys:
    """One key, or one per client when a part is a sequence.

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


# ---- hashing -------------------------------------------------------------------------------------
# Random numbers of one member at the price of a few multiplications, and nothing kept.
#
# The keys are those of :func:`shoal.core.rng.keys`; plain integers are ten times quicker for one
# of them.

_MASK = (1 << 64) - 1
_HASHING_GOLDEN = 0x9E3779B97F4A7C15
_S11, _S27, _S30, _S31 = (np.uint64(shift) for shift in (11, 27, 30, 31))
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
Words = NDArray[np.uint64]


def _hashing_mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def fold(seed: int, purpose: Purpose, *parts: int) -> int:
    """The same number as ``shoal.core.rng.keys(seed, purpose, *parts)[0]``.

    >>> from shoal.core.rng import keys
    >>> fold(3, Purpose.WORLD, 1, 2) == int(keys(3, Purpose.WORLD, 1, 2)[0])
    True
    """
    out = _hashing_mix((seed + _HASHING_GOLDEN) & _MASK)
    for part in (int(purpose), *parts):
        out = _hashing_mix((out * 3 + part + _HASHING_GOLDEN) & _MASK)
    return out


def counters(width: int) -> Words:
    """What :func:`uniforms` needs for ``width`` numbers; made once, used for every member."""
    return np.arange(1, width + 1, dtype=np.uint64) * np.uint64(_HASHING_GOLDEN)


def uniforms(key: int, counter: Words) -> NDArray[np.float64]:
    """Numbers in (0, 1), as ``shoal.core.rng.uniform`` of one key."""
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
            left, right = (
                right,
                left ^ (_hashing_mix((key + turn * _HASHING_GOLDEN + right) & _MASK) & mask),
            )
        value = (left << half) | right
        if value < members:
            return value


# ---- seeded --------------------------------------------------------------------------------------
# Random numbers that torch draws in code of others, from a generator of our own.
#
# A network's constructor draws its first weights from torch's global generator. Here every operator
# that would is handed another one, so that nothing reads or writes global state: what a network is
# made of depends on its seed alone, whichever threads draw meanwhile. The numbers are those that
# ``torch.manual_seed(seed)`` would give.


class seeded(TorchDispatchMode):  # type: ignore[no-untyped-call]  # noqa: N801 (a context manager)
    """Draw from a generator with this seed inside of the block, in this thread.

    >>> with seeded(3):
    ...     first = torch.randn(2)
    >>> bool((torch.randn(2, generator=torch.Generator().manual_seed(3)) == first).all())
    True
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, to have it leave this alone

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if draws_globally(func, args, kwargs):
            func = _with_generator(func)
            kwargs["generator"] = self._generator
        return func(*args, **kwargs)


def draws_globally(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call draws from torch's global generator."""
    drawn = Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    return drawn and not _drops_nothing(func, args, kwargs)


def _drops_nothing(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator would draw for its dropout alone, and drops nothing (attention), or in
    training alone, and this is not."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "training"):
            given = args[place] if place < len(args) else argument.default_value
            return bool(kwargs.get(argument.name, given) == 0.0)
    return False


def _with_generator(func: OpOverload) -> OpOverload:
    """The form of an operator that takes a generator."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = func._overloadname
    wanted = "generator" if name == "default" else f"{name}_generator"
    found = getattr(func.overloadpacket, wanted, None)
    if not isinstance(found, OpOverload):
        raise UserError(f"the network draws with {func} while it is built, which cannot be seeded")
    return found
