"""Stages of domains or classes, streams in time order, late labels, the list of shifts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from shoal.core.errors import UserError
from shoal.core.types import Kind, Shift
from shoal.worlds.changes.concepts import Concepts
from shoal.worlds.changes.input_domains import DomainRows
from shoal.worlds.members.holdings import Parts, PopulationSpec
from shoal.worlds.members.membership import Membership
from shoal.worlds.members.population import (
    Dealt,
    Labels,
    Population,
    Rows,
    codes_of,
    dealt,
    stage_classes,
)
from shoal.worlds.spec import Reader, is_whole

# ---- streams -------------------------------------------------------------------------------------
# Data that comes in time order: members cut from a stream, and windows that move with the round.
#
# The order of a data set's rows is its time.


@dataclass(frozen=True)
class Stream:
    """Which of its n rows a member holds in round t of T.

    Time is cut into T + 1 slots; slot t ends at row ``e_t = floor(n (t + 1) / (T + 1))``. In round
    t a member holds the ``w`` rows before ``max(e_t, w)``, where w is ``window`` or else
    ``floor(n / (T + 1))``, at least 1 and at most n. What comes next is slot t + 1, the rows from
    ``e_t`` to ``e_(t+1)``: tests look at it before anybody trains on it.
    """

    rounds: int
    window: int | None = None

    def size(self, rows: int) -> int:
        width = rows // (self.rounds + 1) if self.window is None else self.window
        return min(rows, max(1, width))

    def sizes(self, population: Population, members: int) -> set[int]:
        """Every number of rows that a member may hold."""
        return {self.size(n) for n in population.sizes()}

    def slot(self, round: int) -> int:
        """What the rows that are held follow: the round."""
        return round

    def end(self, rows: int, round: int) -> int:
        return rows * (round + 1) // (self.rounds + 1)

    def held(self, rows: Rows, round: int) -> Rows:
        """Of a member's rows in time order, those it holds now."""
        size = self.size(len(rows))
        end = max(self.end(len(rows), round), size)
        return rows[end - size : end]

    def ahead(self, rows: Rows, round: int) -> Rows:
        """Those it will meet next and has not met yet."""
        size = self.size(len(rows))
        begin = max(self.end(len(rows), round), size)
        return rows[begin : max(begin, self.end(len(rows), round + 1))]


def read_stream(value: Any, rounds: int, lazy: bool) -> Stream | None:
    """``stream: true`` or ``stream: {window: rows}``."""
    if value is None or value is False:
        return None
    if lazy:
        raise UserError("a lazy world has no stream, for its members draw rows at random; leave "
                        "out lazy or stream.")  # fmt: skip
    if value is True:
        return Stream(rounds)
    if not isinstance(value, Mapping):
        raise UserError(f"stream is {value!r}; it must be true, or a mapping {{window: rows}}.")
    reader = Reader(value, "stream", ("window",))
    return Stream(rounds, reader.whole("window") if reader.given("window") else None)


# ---- timeline ------------------------------------------------------------------------------------
# The event stream: what changes at which round, and whether the federation is told.


class Apart(Population, Protocol):
    """A population whose members' last rows are held out for their own scores."""

    def held_out(self, member: int) -> int: ...

    def train_sizes(self) -> set[int]:
        """Every number of rows that a member may train and validate on."""
        ...


@dataclass(frozen=True, eq=False)
class Stage:
    """From round ``start`` on, members hold ``population``'s rows of ``block``.

    ``apart`` says how many of a member's rows are held out, at the end of its rows (None: none).
    """

    start: int
    kind: Kind  # domain or classes
    name: str
    block: DomainRows
    population: Population
    labels: Labels | None = None  # the classes that this stage brings; None: all
    apart: Apart | None = None


def stage_at(stages: tuple[Stage, ...], round: int) -> int:
    return bisect_right(stages, round, key=lambda s: s.start) - 1


def shifts(
    membership: Membership,
    concepts: Concepts,
    stages: tuple[Stage, ...],
    hidden: frozenset[Kind],
    rounds: int,
) -> dict[int, Shift]:
    """Every shift by its round. When announced and hidden changes fall on one round, the shift is
    announced and has the announced kinds only; the note tells of both."""
    notes: dict[int, list[tuple[Kind, str]]] = {}
    for session, start in enumerate(membership.starts[1:], 1):
        notes.setdefault(start, []).append(
            ("members", f"session {session}: {membership.note(session)}")
        )
    for index, drift in enumerate(concepts.drifts):
        name = f"drift {index}" if len(concepts.drifts) > 1 else "drift"
        for start, reached in zip(drift.rounds, drift.reached, strict=True):
            text = f"swapped labels for {reached} of {concepts.members}" if reached else "undone"
            notes.setdefault(start, []).append(("concept", f"{name}: {text}"))
    for number, stage in enumerate(stages[1:], 1):
        text = f"stage {number}: {stage.kind} {stage.name}"
        notes.setdefault(stage.start, []).append((stage.kind, text))
    return {r: _shift(r, notes[r], hidden) for r in sorted(notes) if r < rounds}


def _shift(round: int, notes: list[tuple[Kind, str]], hidden: frozenset[Kind]) -> Shift:
    told = frozenset(kind for kind, _ in notes if kind not in hidden)
    text = "; ".join(t + (" (hidden)" if told and kind in hidden else "") for kind, t in notes)
    return Shift(round, told or frozenset(kind for kind, _ in notes), bool(told), text)


# ---- stages --------------------------------------------------------------------------------------
# Stages: domains one after another, or classes that appear; one population each.

# by data, the labels that the stage brings, and whether the late ones are there too
Made = dict[tuple[int, Labels | None, bool], Population]


@dataclass(frozen=True)
class StagePlan:
    """What the spec says of stages; ``rounds`` is 0 when it says nothing."""

    kinds: tuple[Kind, ...]
    domains: tuple[str, ...]
    labels: tuple[Labels | None, ...]
    starts: tuple[int, ...] = (0,)
    rounds: int = 0
    cumulative: bool = False
    full: tuple[bool, ...] = ()  # whether a stage has the late labels too
    rest: Labels = ()
    late: Labels = ()  # what nobody holds before the first full stage


def read_plan(reader: Reader, classes: int | None) -> StagePlan:
    """Stages of ``rounds_per_stage`` rounds (20 unless given), by domain or by class."""
    name = reader.raw("name")
    by_class = name == "classes" or reader.given("stages", "classes", "cumulative")
    if name == "domains" or reader.given("domains"):
        if by_class:
            reader.bad("domains", "left out when stages bring classes; a stage is one or the other")
        domains = reader.raw("domains")
        if not isinstance(domains, list | tuple) or not domains:
            reader.bad("domains", "a list of domains, such as [plain, inverted, rotated]")
        if not all(isinstance(d, str) for d in domains):
            reader.bad("domains", "a list of names, such as [plain, inverted, rotated]")
        lengths = reader.lengths("rounds_per_stage", len(domains), 20)
        starts = (0, *accumulate(lengths[:-1]))
        count = len(domains)
        kinds, labels = ("domain",) * count, (None,) * count
        return StagePlan(kinds, tuple(domains), labels, starts, sum(lengths))
    if by_class:
        found = stage_classes(reader, classes)
        count = len(found)
        lengths = reader.lengths("rounds_per_stage", count, 20)
        starts = (0, *accumulate(lengths[:-1]))
        names, together = ("plain",) * count, reader.flag("cumulative")
        return StagePlan(("classes",) * count, names, tuple(found), starts, sum(lengths), together)
    if reader.given("rounds_per_stage"):
        reader.bad("rounds_per_stage", "left out unless there are domains or stages")
    return StagePlan(("domain",), ("plain",), (None,))


def hold(
    plan: StagePlan,
    holders: PopulationSpec,
    blocks: Sequence[DomainRows],
    drawn: Sequence[Parts | None] | None,
) -> tuple[Stage, ...]:
    """Give every stage its population; stages with the same labels of the same data share one."""
    made: Made = {}
    out: list[Stage] = []
    for number, (name, labels) in enumerate(zip(plan.domains, plan.labels, strict=True)):
        block = next(b for b in blocks if b.name == name)
        full = bool(plan.full) and plan.full[number]
        key = (id(block.data), labels, full)
        if key not in made:
            given = drawn[number] if drawn is not None else None
            if given is not None:
                made[key] = _checked(block, given, holders.members)
            elif full:
                made[key] = _full(plan, holders, block, number, made)
            else:
                made[key] = _drawn(plan, holders, block, number, made)
        out.append(
            Stage(
                plan.starts[number],
                plan.kinds[number],
                _text(plan, number),
                block,
                made[key],
                labels,
            )
        )
    return tuple(out)


def _text(plan: StagePlan, number: int) -> str:
    """How a stage is called."""
    name, labels = plan.domains[number], plan.labels[number]
    if labels is None:
        return name
    if plan.late and labels == plan.rest:
        return f"{name} without {', '.join(map(str, plan.late))}"
    return ", ".join(map(str, labels))


def _full(
    plan: StagePlan, holders: PopulationSpec, block: DomainRows, number: int, made: Made
) -> Population:
    """What members hold of the other labels, and their share of the late ones."""
    if holders.samples is not None:
        return holders.population(block.data, None, number)
    before = made.get((id(block.data), plan.rest, False))
    if before is None:
        before = holders.population(block.data, plan.rest, number)
    late = holders.more(block.data, plan.late, number)
    parts = [np.concatenate([before.rows(m), late[m]]) for m in range(holders.members)]
    return dealt(codes_of(block.data), parts)


def _drawn(
    plan: StagePlan,
    holders: PopulationSpec,
    block: DomainRows,
    number: int,
    made: Made,
) -> Population:
    """Stage ``number``'s draw; with ``cumulative`` it comes on top of the stage before."""
    labels = plan.labels[number]
    if not plan.cumulative or number == 0 or labels is None:
        return holders.population(block.data, labels, number)
    if holders.samples is not None:
        seen = {c for stage in plan.labels[: number + 1] for c in stage or ()}
        return holders.population(block.data, tuple(sorted(seen)), number)
    before = made[(id(block.data), plan.labels[number - 1], False)]
    fresh = holders.population(block.data, labels, number)
    parts = [np.concatenate([before.rows(m), fresh.rows(m)]) for m in range(holders.members)]
    return dealt(codes_of(block.data), parts)


def _checked(block: DomainRows, parts: Parts, members: int) -> Dealt:
    """Saved assignments that fit the data."""
    rows: list[Rows] = list(parts)
    if len(rows) != members or any(
        len(r) and not 0 <= int(r.min()) <= int(r.max()) < block.train_rows for r in rows
    ):
        raise UserError(
            f"the saved world names rows or members that data set {block.data.name!r} with "
            f"{block.train_rows} rows does not have; load the data set it was drawn on."
        )
    return dealt(codes_of(block.data), rows)


# ---- unseen --------------------------------------------------------------------------------------
# Labels that nobody holds until late in the run.


def with_unseen(
    plan: StagePlan, reader: Reader, membership: Membership, rounds: int, classes: int | None
) -> StagePlan:
    """``unseen: {labels: [8, 9], from: last}``: from the first round of the last session on (or
    from a round's number), members also hold rows of these labels; before, nobody does.

    The change begins a stage of kind ``classes``, so parts that hear of new classes hear of it.
    The rows of the late labels are dealt by the world's own partition, on top of what members
    hold; members of a lazy world draw all their rows anew.
    """
    value = reader.raw("unseen")
    if value is None:
        return plan
    right = "a mapping {labels: [classes], from: last or a round}"
    if not isinstance(value, Mapping) or set(value) - {"labels", "from"} or classes is None:
        reader.bad("unseen", right if classes is not None else "left out, for there are no classes")
    if any(kind == "classes" for kind in plan.kinds):
        reader.bad("unseen", "left out when stages bring classes, which says the same")
    unseen = Reader(value, "unseen", ("labels", "from"))
    late = _labels(reader, unseen.raw("labels"), classes)
    start = _round(reader, unseen.raw("from", "last"), membership, rounds)
    return _cut(plan, late, tuple(c for c in range(classes) if c not in late), start)


def _labels(reader: Reader, listed: object, classes: int) -> Labels:
    if not isinstance(listed, list | tuple):
        reader.bad("unseen", f"such that labels lists some, not all, of the {classes} classes")
    if not all(is_whole(c) and 0 <= c < classes for c in listed):
        reader.bad("unseen", f"such that labels are classes from 0 to {classes - 1}")
    if not 0 < len(set(listed)) < classes:
        reader.bad("unseen", f"such that labels lists some, not all, of the {classes} classes")
    return tuple(sorted(set(listed)))


def _round(reader: Reader, given: object, membership: Membership, rounds: int) -> int:
    if given == "last":
        if len(membership.starts) < 2:
            reader.bad("unseen", "such that from is a round, for there is one session only")
        return membership.starts[-1]
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given < rounds:
        reader.bad("unseen", f"such that from is 'last' or a round from 1 to {rounds - 1}")
    return given


def _cut(plan: StagePlan, late: Labels, rest: Labels, start: int) -> StagePlan:
    """Stages before ``start`` lack the late labels; one that goes on through it is cut in two."""
    stages = list(zip(plan.starts, plan.domains, strict=True))
    ends = [*plan.starts[1:], start + 1]
    out: list[tuple[int, str, str, Labels | None, bool]] = []
    for (begin, domain), end in zip(stages, ends, strict=True):
        if begin >= start:
            out.append((begin, domain, "domain", None, True))
            continue
        out.append((begin, domain, "domain", rest, False))
        if start < end:
            out.append((start, domain, "classes", late, True))
    starts, domains, kinds, labels, full = zip(*out, strict=True)
    return replace(plan, starts=starts, domains=domains, kinds=kinds, labels=labels,
                   full=full, rest=rest, late=late)  # fmt: skip
