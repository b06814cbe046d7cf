"""Rows that are split off first, so that a member can be scored on rows that nobody trains on.

A member's rows are dealt (or drawn, in a lazy world) as ever. Then ``share`` of them is held out:
which ones depends on the seed, the member and the rows, never on the engine or the order of asking.
What is held out stays so in every stage and for every member that holds the same row, so no model
of the run, and no validation or early stopping, has seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core import rng
from shoal.core.errors import UserError
from shoal.worlds.changes.stages import Apart, Stage
from shoal.worlds.members.holdings import Lazy
from shoal.worlds.members.population import Labels, Population, Rows

FREE, TRAINED, HELD = 0, 1, 2  # what was decided about a row


def portion(rows: int, share: float) -> int:
    """How many of so many rows are held out: ``share`` of them, at least 1 and never all; none of
    a single row.

    >>> portion(1, 0.2), portion(2, 0.2), portion(10, 0.2)
    (0, 1, 2)
    """
    if share == 0 or rows < 2:
        return 0
    return min(rows - 1, max(1, round(rows * share)))


@dataclass(frozen=True, eq=False)
class DealtApart:
    """A dealt population: a member's training rows, then those that are held out."""

    whole: Population
    parts: tuple[Rows, ...]
    counts: tuple[int, ...]  # rows held out, at the end of each part

    def rows(self, member: int) -> Rows:
        return self.parts[member]

    def held_out(self, member: int) -> int:
        return self.counts[member]

    def train_sizes(self) -> set[int]:
        return {len(p) - n for p, n in zip(self.parts, self.counts, strict=True)}

    def sizes(self) -> set[int]:
        return self.whole.sizes()

    def classes(self, members: Sequence[int]) -> Labels:
        return self.whole.classes(members)

    def saved(self) -> dict[str, Any]:
        return self.whole.saved()


@dataclass(frozen=True, eq=False)
class DrawnApart:
    """A lazy population: the classes' rows are cut in two, and members draw from both parts."""

    whole: Lazy
    train: Lazy
    own: Lazy | None  # None: a member has one row only

    def rows(self, member: int) -> Rows:
        mine = self.train.rows(member)
        return mine if self.own is None else np.concatenate([mine, self.own.rows(member)])

    def held_out(self, member: int) -> int:
        return 0 if self.own is None else self.own.samples

    def train_sizes(self) -> set[int]:
        return self.train.sizes()

    def sizes(self) -> set[int]:
        return self.whole.sizes()

    def classes(self, members: Sequence[int]) -> Labels:
        return self.whole.classes(members)

    def saved(self) -> dict[str, Any]:
        return self.whole.saved()


def hold_out(
    stages: Sequence[Stage],
    members: int,
    share: float,
    seed: int,
    tested: Callable[[Stage, int], bool],
) -> tuple[Stage, ...]:
    """The stages with ``share`` of every member's rows split off.

    Nothing is split off for a member that has test rows of its own (``tested``). Rows are decided
    stage after stage and member after member: a row that an earlier stage or another member has
    stays on its side, and new rows make up what is missing to the share.
    """
    decided: dict[int, NDArray[np.int8]] = {}  # by data set: what became of each row
    seen: dict[int, Population] = {}
    for number, stage in enumerate(stages):
        whole = stage.population
        if id(whole) in seen:
            continue
        seen[id(whole)] = whole
        if isinstance(whole, Lazy):
            continue
        key = id(stage.block.data)
        sides = decided.setdefault(key, np.zeros(stage.block.train_rows, np.int8))
        for member in range(members):
            part = 0.0 if tested(stage, member) else share
            _decide(sides, whole.rows(member), part, (seed, number, member))
    made: dict[int, Apart] = {}
    out = []
    for stage in stages:
        whole = stage.population
        if id(whole) not in made:
            if isinstance(whole, Lazy):
                made[id(whole)] = _drawn(whole, share)
            else:
                made[id(whole)] = _dealt(whole, members, decided[id(stage.block.data)])
        apart = made[id(whole)]
        out.append(replace(stage, population=apart, apart=apart))
    nobody = not any(
        stage.apart is not None and (stage.apart.held_out(m) or tested(stage, m))
        for stage in out
        for m in (range(1) if isinstance(stage.apart, DrawnApart) else range(members))
    )
    if nobody:
        raise UserError(
            "evaluate.rows and evaluate.local_models_every score members on rows of their own, but "
            "every member has one row only, of which none can be held out; use fewer members, or "
            "evaluate.rows: test_present."
        )
    return tuple(out)


def _decide(sides: NDArray[np.int8], rows: Rows, share: float, key: tuple[int, int, int]) -> None:
    """Decide about the rows of one member that nobody has decided about yet."""
    held = int((sides[rows] == HELD).sum())
    free = np.unique(rows[sides[rows] == FREE])
    wanted = min(max(0, portion(len(rows), share) - held), len(free))
    sides[free] = TRAINED
    if wanted:
        seed, stage, member = key
        found = rng.keys(seed, rng.Purpose.HELD_OUT, stage, member)
        order = rng.permutations(found, np.array([len(free)]))[0]
        sides[free[order[:wanted]]] = HELD
    if len(rows) and (sides[rows] == HELD).all():
        sides[rows[0]] = TRAINED  # others hold all of its rows: one must be left to train on


def _dealt(whole: Population, members: int, sides: NDArray[np.int8]) -> DealtApart:
    parts, counts = [], []
    for member in range(members):
        rows = whole.rows(member)
        held = sides[rows] == HELD
        parts.append(np.concatenate([rows[~held], rows[held]]))
        counts.append(int(held.sum()))
    return DealtApart(whole, tuple(parts), tuple(counts))


def _drawn(whole: Lazy, share: float) -> DrawnApart:
    count = portion(whole.samples, share)
    keep = [table.cut(share, portion) for table in whole.tables]
    train = replace(whole, samples=whole.samples - count, tables=tuple(t for t, _ in keep))
    if not count:
        return DrawnApart(whole, train, None)
    return DrawnApart(whole, train, replace(whole, samples=count, tables=tuple(t for _, t in keep)))
