"""A population beyond the data: a member's rows are a function of (seed, member)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.rng import Purpose, bits, keys
from shoal.worlds.classes import Labels
from shoal.worlds.hashing import counters, fold, uniforms
from shoal.worlds.population import Rows
from shoal.worlds.spans import spread

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of some classes, class after class, each in a seeded order."""

    labels: Labels  # the classes that have rows
    order: Rows
    begin: Rows  # where a class begins in ``order``
    size: Rows
    strides: Rows  # numbers without a common factor with a class's size, class after class
    stride_begin: Rows
    smallest: int
    limits: Rows  # [2, classes]: sizes, and numbers of strides

    @classmethod
    def of(cls, codes: Rows, labels: Labels, seed: int) -> Table:
        words = bits(keys(seed, Purpose.PARTITION, 1), len(codes))[0]
        rows = np.argsort(words, kind="stable")
        by_class = [rows[codes[rows] == c] for c in labels]
        held = [(c, r) for c, r in zip(labels, by_class, strict=True) if len(r)]
        if not held:
            raise UserError(f"there is no row of the classes {list(labels)} to draw members from.")
        return cls._over(tuple(c for c, _ in held), [r for _, r in held])

    @classmethod
    def _over(cls, labels: Labels, rows: Sequence[Rows]) -> Table:
        size = np.array([len(r) for r in rows])
        strides = [_coprime(len(r)) for r in rows]
        count = np.array([len(s) for s in strides])
        return cls(
            labels,
            np.concatenate(rows),
            np.cumsum(size) - size,
            size,
            np.concatenate(strides),
            np.cumsum(count) - count,
            int(size.min()),
            np.stack([size, count]),
        )

    def cut(self, share: float, portion: Callable[[int, float], int]) -> tuple[Table, Table]:
        """Two tables of the same classes: what is left, and ``portion`` of each class's rows.

        A class keeps its order in every table, so the cut is the same in all of them.
        """
        whole = np.split(self.order, self.begin[1:])
        ends = [portion(len(rows), share) for rows in whole]
        left = [rows[end:] for rows, end in zip(whole, ends, strict=True)]
        taken = [rows[:end] for rows, end in zip(whole, ends, strict=True)]
        return Table._over(self.labels, left), Table._over(self.labels, taken)


def _coprime(size: int) -> Rows:
    """At most 64 of the numbers below ``size`` that have no common factor with it, spread out."""
    found = [s for s in range(1, max(2, size)) if gcd(s, size) == 1]
    return np.array(found[:: -(-len(found) // 64)], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Lazy:
    """Every member holds ``samples`` different rows.

    The class prior is ``Dir(alpha)`` over the member's classes (``alpha`` None: the classes'
    shares of the data). Counts are the prior times ``samples``, rounded with one random offset;
    what a class lacks is taken from the next ones. Rows of a class are every s-th of its seeded
    order from a random start. Member m is in group ``m // group_size`` and uses that table.
    """

    seed: int
    members: int
    samples: int
    alpha: float | None
    tables: tuple[Table, ...]
    group_size: int
    stream: int = 0  # members' draws of another stage or domain are others
    _counter: NDArray[np.uint64] = field(init=False, repr=False)
    _positions: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for table in self.tables:
            if self.samples > len(table.order):
                raise UserError(
                    f"samples is {self.samples}, but a member's classes have only "
                    f"{len(table.order)} rows; use at most that many."
                )
        width = max(len(t.labels) for t in self.tables)
        object.__setattr__(self, "_counter", counters(3 * width + 1))
        object.__setattr__(self, "_positions", np.arange(self.samples))

    def rows(self, member: int) -> Rows:
        table = self.tables[member // self.group_size]
        classes = len(table.labels)
        u = uniforms(fold(self.seed, Purpose.WORLD, 2, self.stream, member), self._counter)
        prior = table.size if self.alpha is None else _dirichlet(u[:classes], self.alpha)
        counts = self._counts(prior, float(u[-1]))
        if self.samples > table.smallest and (counts > table.size).any():
            counts = _within(counts, table.size)
        start, pick = (u[classes : 3 * classes].reshape(2, -1) * table.limits).astype(np.int64)
        stride = table.strides[table.stride_begin + pick]
        begin = counts.cumsum() - counts
        # Row j of class c: (start + (j - begin) * stride) mod size, one column a class.
        start += table.size * begin - begin * stride  # never negative, as stride <= size
        each = np.stack((start, stride, table.size, table.begin)).repeat(counts, 1)
        found: Rows = table.order[each[3] + (each[0] + self._positions * each[1]) % each[2]]
        return found

    def _counts(self, prior: NDArray[Any], offset: float) -> Rows:
        """``samples`` cut by the prior: differences of ``floor(cumulative + offset)``."""
        ends = prior.cumsum()
        cut: Rows = (ends * (self.samples / ends[-1]) + 0.999999 * offset).astype(np.int64)
        cut[-1] = self.samples
        cut[1:] -= cut[:-1].copy()
        return cut

    def sizes(self) -> set[int]:
        return {self.samples}

    def classes(self, members: Sequence[int]) -> Labels:
        """Classes that these members may draw (whether or not somebody did)."""
        groups = {0}
        if len(self.tables) > 1:
            groups = {m // self.group_size for m in spread(members, 1000)}
        return tuple(sorted({c for g in groups for c in self.tables[g].labels}))

    def saved(self) -> dict[str, Any]:
        """The rule, and three members' rows to prove that another machine draws the same."""
        shown = sorted({0, self.members // 2, self.members - 1})
        return {
            "lazy": {"members": self.members, "samples": self.samples, "alpha": self.alpha},
            "drawn": {str(m): self.rows(m).tolist() for m in shown},
        }


def _dirichlet(u: Floats, alpha: float) -> Floats:
    """A sample of ``Dir(alpha)`` up to scale, from uniform numbers by the inverse of the gamma
    distribution; where that underflows, from ``P(x) ~ x^alpha / Gamma(alpha + 1)`` in logs."""
    from scipy.special import gammaincinv  # see flow.py

    gamma: Floats = gammaincinv(alpha, u)
    if alpha >= 0.1 or gamma.max() > 1e-100:
        return gamma
    logs = (np.log(u) + lgamma(alpha + 1)) / alpha
    shares: Floats = np.exp(logs - logs.max())
    return shares


def _within(counts: Rows, size: Rows) -> Rows:
    """Counts with the same sum and none above ``size``; what is over goes to the next classes."""
    out = np.minimum(counts, size)
    over = counts - out
    for c in np.flatnonzero(over):
        left = int(over[c])
        for step in range(1, len(counts)):
            k = (c + step) % len(counts)
            moved = min(left, int(size[k] - out[k]))
            out[k] += moved
            left -= moved
    return out
