"""What labels mean: swaps that reach a share of the members at once, in steps, or to and fro.

A drift is data: a label permutation, and how many members it has reached from which round on.
It reaches members in one seeded order, so those reached first stay reached in later steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.rng import Purpose
from shoal.worlds.hashing import fold, rank

COUNTED = 1000  # concepts of more members than this are estimated from that many
MOST_DRIFTS = 6


@dataclass(frozen=True)
class Drift:
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
    drifts: tuple[Drift, ...] = ()
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
