"""Rows as a function of (seed, member), for millions of members; which population a stage has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.rng import Purpose, bits, counters, fold, generator, keys, uniforms
from shoal.data import partition as partitions
from shoal.data.sources import Dataset
from shoal.worlds.members.ids import spread
from shoal.worlds.members.population import (
    Labels,
    Population,
    Rows,
    codes_of,
    deal,
    dealt,
    in_time,
    natural,
    no_clients,
    read_partition,
)
from shoal.worlds.spec import Reader

# ---- lazy ----------------------------------------------------------------------------------------
# A population beyond the data: a member's rows are a function of (seed, member).

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassRows:
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
    def of(cls, codes: Rows, labels: Labels, seed: int) -> ClassRows:
        words = bits(keys(seed, Purpose.PARTITION, 1), len(codes))[0]
        rows = np.argsort(words, kind="stable")
        by_class = [rows[codes[rows] == c] for c in labels]
        held = [(c, r) for c, r in zip(labels, by_class, strict=True) if len(r)]
        if not held:
            raise UserError(f"there is no row of the classes {list(labels)} to draw members from.")
        return cls._over(tuple(c for c, _ in held), [r for _, r in held])

    @classmethod
    def _over(cls, labels: Labels, rows: Sequence[Rows]) -> ClassRows:
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

    def cut(
        self, share: float, portion: Callable[[int, float], int]
    ) -> tuple[ClassRows, ClassRows]:
        """Two tables of the same classes: what is left, and ``portion`` of each class's rows.

        A class keeps its order in every table, so the cut is the same in all of them.
        """
        whole = np.split(self.order, self.begin[1:])
        ends = [portion(len(rows), share) for rows in whole]
        left = [rows[end:] for rows, end in zip(whole, ends, strict=True)]
        taken = [rows[:end] for rows, end in zip(whole, ends, strict=True)]
        return ClassRows._over(self.labels, left), ClassRows._over(self.labels, taken)


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
    tables: tuple[ClassRows, ...]
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
        # Row j of class c: (start + (j - begin) * stride) mod size, one column per class.
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


# ---- holders -------------------------------------------------------------------------------------
# Which population a stage has: the spec's partition, lazy or dealt, by group and by class.

Parts = Sequence[Rows]


@dataclass(frozen=True)
class PopulationSpec:
    """How members get their rows. ``labels[g]`` are the classes of group g (None: all); ``copied``:
    groups that have a class in common each deal all of its rows (``shared: both``)."""

    members: int
    partition: str
    options: Mapping[str, Any]
    samples: int | None  # rows of a lazy member; None: the partition deals all rows
    seed: int
    groups: int = 1
    labels: Sequence[Labels] | None = None
    copied: bool = False

    def population(self, data: Dataset, labels: Labels | None, stream: int) -> Population:
        """Rows of ``data`` in the classes ``labels``; ``stream`` numbers independent draws."""
        codes = codes_of(data)
        classes = tuple(range(data.label_classes or 1)) if labels is None else labels
        if self.samples is not None:
            return self._lazy(codes, classes, stream)
        return dealt(codes, self._parts(data, codes, classes, stream))

    def more(self, data: Dataset, labels: Labels, stream: int) -> list[Rows]:
        """Rows of further classes for every member; none where a group does not hold them."""
        return self._parts(data, codes_of(data), labels, stream, lenient=True)

    def _parts(
        self, data: Dataset, codes: Rows, classes: Labels, stream: int, lenient: bool = False
    ) -> list[Rows]:
        among = np.flatnonzero(np.isin(codes, classes))
        if self.labels is None:
            return self._deal(data, codes, among, self.members, stream, 0)
        parts: list[Rows] = []
        for group, rows in enumerate(self._shared(codes, among, stream)):
            if not len(rows) and lenient:
                parts += [rows] * (self.members // self.groups)
                continue
            if not len(rows):
                raise UserError(f"group {group} holds none of the classes {list(classes)}; use "
                                f"labels: all, or other classes.")  # fmt: skip
            size = self.members // self.groups
            parts += self._deal(data, codes, rows, size, stream, 1 + group)
        return parts

    def _deal(
        self, data: Dataset, codes: Rows, among: Rows, members: int, stream: int, part: int
    ) -> list[Rows]:
        if self.partition == "natural":
            if part:
                raise UserError("partition 'natural' leaves labels as they are; use labels: all.")
            return natural(data, members, among)
        if self.partition == "time":
            return in_time(among, members, **self.options)
        draws = generator(self.seed, Purpose.PARTITION, stream, part)
        return [among[p] for p in deal(self.partition, self.options, codes[among], members, draws)]

    def _shared(self, codes: Rows, among: Rows, stream: int) -> list[Rows]:
        """Rows of each group; those of a class that several groups have are dealt out evenly,
        unless they are copied."""
        if self.copied:
            return [among[np.isin(codes[among], labels)] for labels in self.labels or ()]
        draws = generator(self.seed, Purpose.PARTITION, stream, -1)
        groups = self.labels or ()
        hands: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in groups]
        for label in sorted({c for labels in groups for c in labels}):
            owners = [g for g, labels in enumerate(groups) if label in labels]
            rows = draws.permutation(among[codes[among] == label])
            for owner, hand in zip(owners, np.array_split(rows, len(owners)), strict=True):
                hands[owner].append(hand)
        return [np.sort(np.concatenate(hand)) for hand in hands]

    def _lazy(self, codes: Rows, classes: Labels, stream: int) -> Population:

        groups = [classes] if self.labels is None else self.labels
        sets = [tuple(c for c in labels if c in classes) for labels in groups]
        tables = tuple(ClassRows.of(codes, labels, self.seed) for labels in sets)
        alpha = float(self.options.get("alpha", 0.5)) if self.partition == "dirichlet" else None
        size = self.members // len(tables)
        assert self.samples is not None
        return Lazy(self.seed, self.members, self.samples, alpha, tables, size, stream)


def read_population(
    reader: Reader, dataset: Dataset, seed: int, listed: int | None = None
) -> PopulationSpec:
    """What the spec says of members, ``partition``, ``lazy`` and ``samples``; ``listed``: a member
    table says who they are, so many where the data do not."""
    name, options = read_partition(reader.raw("partition"))
    own = len(np.unique(dataset.group.cpu().numpy())) if dataset.group is not None else 0
    if name == "natural" and not own and (listed is not None or not reader.given("members")):
        raise no_clients(dataset)
    natural_count = own if name == "natural" and own else None
    if listed is not None:
        members = natural_count or listed
    else:
        members = reader.whole("members", natural_count)
    if not reader.flag("lazy"):
        if reader.given("samples"):
            reader.bad("samples", "left out unless lazy is true")
        return PopulationSpec(members, name, options, None, seed)
    if name not in ("dirichlet", "iid"):
        raise UserError(f"partition of a lazy world is {name!r}; it must be dirichlet or iid.")
    alpha = options.get("alpha", 0.5)
    if set(options) - {"alpha"} or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise UserError(f"partition {name!r} of a lazy world is {options!r}; it takes a number "
                        f"alpha above 0 and nothing else.")  # fmt: skip
    if not 0.0 < alpha < float("inf"):
        raise UserError(f"alpha of partition 'dirichlet' is {alpha!r}; it must be above 0.")
    return PopulationSpec(members, name, options, reader.whole("samples", 50), seed)


def member_names(dataset: Dataset, holders: PopulationSpec) -> tuple[str, ...] | None:
    """Names of the members, by number, where they are clients that the data name."""
    if holders.partition != "natural" or dataset.names is None or dataset.group is None:
        return None
    numbers = np.unique(dataset.group.cpu().numpy())[: holders.members]
    return tuple(dataset.names[number] for number in numbers)


def complete_partition(value: Any, lazy: bool) -> Any:
    """What a world says of its partition, every option written out."""
    name, options = read_partition(value)
    if name == "time":
        known = inspect.signature(in_time).parameters
    elif name == "natural":
        return {"name": name}
    else:
        known = inspect.signature(getattr(partitions, name)).parameters
    defaults = {
        key: parameter.default
        for key, parameter in known.items()
        if parameter.default is not parameter.empty and (not lazy or key == "alpha")
    }
    return {"name": name, **defaults, **options}
