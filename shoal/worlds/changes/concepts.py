"""Label swaps: sudden, incremental, recurrent."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.rng import Purpose, fold, rank
from shoal.worlds.spec import Reader, is_whole

# ---- concepts ------------------------------------------------------------------------------------
# What labels mean: swaps that reach a share of the members at once, in steps, or to and fro.
#
# A drift is data: a label permutation, and how many members it has reached from which round on.
# It reaches members in one seeded order, so those reached first stay reached in later steps.

COUNTED = 1000  # concepts of more members than this are estimated from that many
MOST_DRIFTS = 6


@dataclass(frozen=True)
class ConceptDrift:
    """From round ``rounds[k]`` on, the first ``reached[k]`` members in order have ``mapping``."""

    kind: str
    mapping: tuple[int, ...]
    rounds: tuple[int, ...]
    reached: tuple[int, ...]
    key: int

    def count(self, round: int) -> int:
        step = bisect_right(self.rounds, round) - 1
        return self.reached[step] if step >= 0 else 0

    def reaches(self, member: int, members: int, round: int) -> bool:
        count = self.count(round)
        return count > 0 and (count >= members or rank(self.key, member, members) < count)


@dataclass(frozen=True)
class Concepts:
    """Drifts of one population. Several that reach a member apply one after another, in order.

    Concepts are the different permutations that drifts can make, numbered from 0, the identity.
    """

    members: int
    classes: int
    drifts: tuple[ConceptDrift, ...] = ()
    maps: tuple[tuple[int, ...], ...] = field(init=False)
    _number: tuple[int, ...] = field(init=False, repr=False)  # of a set of drifts, as bits

    def __post_init__(self) -> None:
        number: list[int] = []
        maps: dict[tuple[int, ...], int] = {}
        for bits in range(1 << len(self.drifts)):
            labels = tuple(range(self.classes))
            for index, drift in enumerate(self.drifts):
                if bits >> index & 1:
                    labels = tuple(drift.mapping[c] for c in labels)
            number.append(maps.setdefault(labels, len(maps)))
        object.__setattr__(self, "maps", tuple(maps))
        object.__setattr__(self, "_number", tuple(number))

    def concept(self, member: int, round: int) -> int:
        bits = 0
        for index, drift in enumerate(self.drifts):
            bits |= drift.reaches(member, self.members, round) << index
        return self._number[bits]

    def relabel(self, labels: Tensor, concept: int) -> Tensor:
        if concept == 0:
            return labels
        return torch.tensor(self.maps[concept], device=labels.device)[labels]

    def shares(self, members: Sequence[int], round: int) -> dict[int, float]:
        """Share of ``members`` that has each concept, counted on 1,000 evenly spaced ones if they
        are more; in order of concept number."""
        if all(d.count(round) in (0, self.members) for d in self.drifts):
            return {self.concept(0, round): 1.0}
        size, some = len(members), min(len(members), COUNTED)
        counts = Counter(self.concept(members[i * size // some], round) for i in range(some))
        return {c: counts[c] / some for c in sorted(counts)}


def drift_key(seed: int, index: int) -> int:
    """The key of the order in which drift ``index`` reaches members."""
    return fold(seed, Purpose.WORLD, 1, index)


# ---- drifts --------------------------------------------------------------------------------------
# From ``drift: {kind: ..., at: ...}`` to when it reaches how many members.

ALLOWED = {
    "sudden": ("kind", "at", "share", "swap"),
    "incremental": ("kind", "at", "share", "swap", "every", "step", "until"),
    "recurrent": ("kind", "at", "share", "swap", "every", "until"),
}
ALL_KEYS = ("kind", "at", "share", "swap", "every", "step", "until")


def read_drifts(value: Any, members: int, classes: int | None, rounds: int, seed: int) -> Concepts:
    """One drift or a list of them."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if classes is None:
        raise UserError("drift swaps labels, and this data set has no classes; leave drift out.")
    if not 1 <= len(listed) <= MOST_DRIFTS or not all(isinstance(d, Mapping) for d in listed):
        raise UserError(
            f"drift is {value!r}; it must be a mapping such as {{kind: sudden, at: 50}}, or a list "
            f"of at most {MOST_DRIFTS} of them."
        )
    drifts = [
        _drift(Reader(d, "drift", ALL_KEYS), members, classes, rounds, drift_key(seed, i))
        for i, d in enumerate(listed)
    ]
    return Concepts(members, classes, tuple(drifts))


def _drift(reader: Reader, members: int, classes: int, rounds: int, key: int) -> ConceptDrift:
    kind = reader.choice("kind", tuple(ALLOWED), "sudden")
    for name in reader.values:
        if name not in ALLOWED[kind]:
            raise UserError(f"a {kind} drift has no key {name!r}; it takes "
                            f"{', '.join(ALLOWED[kind])}.")  # fmt: skip
    at = _round(reader, "at", 1, rounds)
    share = reader.number("share", 1.0, 0.0, 1.0)
    if kind == "sudden":
        steps = [(at, share)]
    elif kind == "incremental":
        steps = _incremental(reader, at, share, rounds)
    else:
        steps = _recurrent(reader, at, share, rounds)
    reached = [max(1, round(s * members)) if s > 0 else 0 for _, s in steps]
    kept = [i for i in range(len(steps)) if i == 0 or reached[i] != reached[i - 1]]
    return ConceptDrift(
        kind,
        read_swap(reader, classes),
        tuple(steps[i][0] for i in kept),
        tuple(reached[i] for i in kept),
        key,
    )


def _incremental(reader: Reader, at: int, share: float, rounds: int) -> list[tuple[int, float]]:
    """``step`` of all members more at ``at`` and every ``every`` rounds, up to ``share``; no step
    comes at round ``until`` or later."""
    every, step = reader.whole("every", 10), reader.number("step", 0.2, 0.0, 1.0)
    end = _round(reader, "until", at + 1, rounds) if reader.given("until") else rounds
    count = ceil(share / step - 1e-9)
    return [
        (at + k * every, min(share, (k + 1) * step)) for k in range(count) if at + k * every < end
    ]


def _recurrent(reader: Reader, at: int, share: float, rounds: int) -> list[tuple[int, float]]:
    """The swap holds from ``at``; every ``every`` rounds it goes or comes back; from ``until`` on
    it is gone. Without ``every`` it goes once, at ``until``."""
    if not reader.given("every", "until"):
        reader.bad("until", "the round at which the old labels return, or give 'every'")
    end = _round(reader, "until", at + 1, rounds) if reader.given("until") else rounds
    every = reader.whole("every", end - at)
    turns = [(r, share if k % 2 == 0 else 0.0) for k, r in enumerate(range(at, end, every))]
    return [*turns, (end, 0.0)] if end < rounds else turns


def _round(reader: Reader, key: str, least: int, rounds: int) -> int:
    value = reader.raw(key)
    if not is_whole(value) or not least <= value < rounds:
        if least >= rounds:
            reader.bad(key, f"a round of the run, which has only {rounds}")
        reader.bad(key, f"a round from {least} to {rounds - 1}, inside the run of {rounds} rounds")
    return int(value)


def read_swap(reader: Reader, classes: int) -> tuple[int, ...]:
    """``all``: label i with i + 1 for even i (of an odd number of classes the last one stays);
    or a list of pairs, no class in two of them."""
    swap = reader.raw("swap", "all")
    if swap == "all":
        swap = [[c, c + 1] for c in range(0, classes - 1, 2)]
    right = f"'all' or a list of pairs of different classes from 0 to {classes - 1}"
    if not isinstance(swap, list | tuple) or not swap:
        reader.bad("swap", right)
    mapping = list(range(classes))
    used: set[int] = set()
    for pair in swap:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            reader.bad("swap", right)
        a, b = pair
        if not all(is_whole(c) and 0 <= c < classes for c in pair) or a == b or used & {a, b}:
            reader.bad("swap", right)
        mapping[a], mapping[b] = b, a
        used |= {a, b}
    return tuple(mapping)
