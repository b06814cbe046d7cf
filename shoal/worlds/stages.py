"""Stages: domains one after another, or classes that appear; one population each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from shoal.errors import UserError
from shoal.types import Kind
from shoal.worlds.classes import Labels, stage_classes
from shoal.worlds.domains import Block
from shoal.worlds.holders import Holders, Parts
from shoal.worlds.population import Dealt, Population, Rows, codes_of, dealt
from shoal.worlds.spec import Reader
from shoal.worlds.timeline import Stage

# by data, the labels that the stage brings, and whether the late ones are there too
Made = dict[tuple[int, Labels | None, bool], Population]


@dataclass(frozen=True)
class Plan:
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


def read_plan(reader: Reader, classes: int | None) -> Plan:
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
        return Plan(kinds, tuple(domains), labels, starts, sum(lengths))
    if by_class:
        found = stage_classes(reader, classes)
        count = len(found)
        lengths = reader.lengths("rounds_per_stage", count, 20)
        starts = (0, *accumulate(lengths[:-1]))
        names, together = ("plain",) * count, reader.flag("cumulative")
        return Plan(("classes",) * count, names, tuple(found), starts, sum(lengths), together)
    if reader.given("rounds_per_stage"):
        reader.bad("rounds_per_stage", "left out unless there are domains or stages")
    return Plan(("domain",), ("plain",), (None,))


def hold(
    plan: Plan, holders: Holders, blocks: Sequence[Block], drawn: Sequence[Parts | None] | None
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


def _text(plan: Plan, number: int) -> str:
    """How a stage is called."""
    name, labels = plan.domains[number], plan.labels[number]
    if labels is None:
        return name
    if plan.late and labels == plan.rest:
        return f"{name} without {', '.join(map(str, plan.late))}"
    return ", ".join(map(str, labels))


def _full(plan: Plan, holders: Holders, block: Block, number: int, made: Made) -> Population:
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
    plan: Plan,
    holders: Holders,
    block: Block,
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


def _checked(block: Block, parts: Parts, members: int) -> Dealt:
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
