"""Which population a stage has: the spec's partition, lazy or dealt, by group and by class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.data import partition as partitions
from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.rng import Purpose, generator
from shoal.worlds.classes import Labels
from shoal.worlds.population import (
    Population,
    Rows,
    codes_of,
    deal,
    dealt,
    natural,
    no_clients,
    read_partition,
)
from shoal.worlds.spec import Reader
from shoal.worlds.streams import in_time

Parts = Sequence[Rows]


@dataclass(frozen=True)
class Holders:
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
        classes = tuple(range(data.classes or 1)) if labels is None else labels
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
        from shoal.worlds.lazy import Lazy, Table

        groups = [classes] if self.labels is None else self.labels
        sets = [tuple(c for c in labels if c in classes) for labels in groups]
        tables = tuple(Table.of(codes, labels, self.seed) for labels in sets)
        alpha = float(self.options.get("alpha", 0.5)) if self.partition == "dirichlet" else None
        size = self.members // len(tables)
        assert self.samples is not None
        return Lazy(self.seed, self.members, self.samples, alpha, tables, size, stream)


def read_holders(reader: Reader, dataset: Dataset, seed: int) -> Holders:
    """What the spec says of members, ``partition``, ``lazy`` and ``samples``."""
    name, options = read_partition(reader.raw("partition"))
    own = len(np.unique(dataset.group.cpu().numpy())) if dataset.group is not None else 0
    if name == "natural" and not own and not reader.given("members"):
        raise no_clients(dataset)
    members = reader.whole("members", own if name == "natural" and own else None)
    if not reader.flag("lazy"):
        if reader.given("samples"):
            reader.bad("samples", "left out unless lazy is true")
        return Holders(members, name, options, None, seed)
    if name not in ("dirichlet", "iid"):
        raise UserError(f"partition of a lazy world is {name!r}; it must be dirichlet or iid.")
    alpha = options.get("alpha", 0.5)
    if set(options) - {"alpha"} or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise UserError(f"partition {name!r} of a lazy world is {options!r}; it takes a number "
                        f"alpha above 0 and nothing else.")  # fmt: skip
    if not 0.0 < alpha < float("inf"):
        raise UserError(f"alpha of partition 'dirichlet' is {alpha!r}; it must be above 0.")
    return Holders(members, name, options, reader.whole("samples", 50), seed)


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
