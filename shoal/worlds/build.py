"""From a spec to a world."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.core.errors import UserError, suggestion
from shoal.core.old_names import todays_world
from shoal.core.types import TARGET_WORDS, Kind
from shoal.data.sources import Dataset
from shoal.data.time_column import plain_dates
from shoal.worlds.calendar import CALENDARS, lay_dates, read_timetable, rounds_of, sessions_by_trace
from shoal.worlds.changes.arrivals import Arrivals, WithRows
from shoal.worlds.changes.concepts import Concepts, read_drifts
from shoal.worlds.changes.input_bias import read_bias, with_bias
from shoal.worlds.changes.input_domains import lay_out
from shoal.worlds.changes.stages import (
    Stage,
    StagePlan,
    Stream,
    hold,
    read_plan,
    read_stream,
    with_unseen,
)
from shoal.worlds.held_out import hold_out
from shoal.worlds.members.availability import CHECKED, read_available
from shoal.worlds.members.holdings import Parts, complete_partition, member_names, read_population
from shoal.worlds.members.membership import Membership, churn, read_poisson, still
from shoal.worlds.members.population import group_labels, natural_clients
from shoal.worlds.members.population import names as partitions
from shoal.worlds.spec import CHURN, KEYS, Reader, read_world
from shoal.worlds.world import Composed


def build(
    spec: Mapping[str, Any],
    dataset: Dataset,
    *,
    seed: int,
    validation: float = 0.0,
    held_out: float | None = None,
) -> Composed:
    """The world that ``spec`` describes on ``dataset``; the same arguments, the same world.

    ``held_out`` is the share of every member's rows that is split off first, for its own score
    (None: none is); ``validation`` is a share of what is left.

    >>> from shoal.data.sources import load
    >>> world = build({"name": "static", "members": 4, "rounds": 3}, load("digits"), seed=0)
    >>> world.rounds, list(world.at(0).members)
    (3, [0, 1, 2, 3])
    """
    return assemble(spec, dataset, seed=seed, validation=validation, held_out=held_out)


def assemble(
    spec: Mapping[str, Any],
    dataset: Dataset,
    *,
    seed: int,
    validation: float = 0.0,
    held_out: float | None = None,
    drawn: Sequence[Parts | None] | None = None,
) -> Composed:
    """Like :func:`build`; ``drawn`` gives the assignments of each stage instead of drawing them."""
    spec = plain_dates(todays_world(spec))
    classes = dataset.label_classes
    if classes is None:
        spec = _of_any_rows(spec, dataset)
    settled = _writable(spec)  # reading it writes every default into it
    reader = read_world(settled)
    if not 0.0 <= validation < 1.0:
        raise UserError(f"validation is {validation!r}; it must be at least 0 and below 1.")
    if held_out is not None and not 0.0 < held_out < 1.0:
        raise UserError(f"held_out is {held_out!r}; it must be above 0 and below 1, or None.")
    table = read_timetable(reader, dataset)
    holders = read_population(reader, dataset, seed, table.listed)
    members, names = holders.members, member_names(dataset, holders)
    plan = read_plan(reader, classes)
    membership = still(members)
    if reader.given("poisson"):
        membership = _flow(reader, members, plan, seed)
    elif reader.raw("name") == "churn" or reader.given(*CHURN):
        if reader.raw("name") == "churn" and reader.given("rounds"):
            reader.bad("rounds", "left out unless poisson says who comes and goes")
        membership = churn(reader, members)
        labels = group_labels(reader, membership.groups, classes)
        copied = reader.choice("shared", ("split", "both"), "split") == "both"
        if copied and labels is None:
            reader.bad("shared", "left out unless labels is 'split'")
        holders = replace(holders, groups=membership.groups, labels=labels, copied=copied)
    rounds = rounds_of(reader, table) if table.dated else _rounds(reader, membership.rounds, plan)
    plan = with_unseen(plan, reader, membership, rounds, classes)
    concepts = Concepts(members, classes or 0)
    if reader.raw("name") == "drift" or reader.given("drift"):
        concepts = read_drifts(reader.raw("drift"), members, classes, rounds, seed)
    hidden = _hidden(reader)
    pool, test_pool, blocks = lay_out(dataset, plan.domains, seed)
    stages = hold(plan, holders, blocks, drawn)
    trace = read_available(reader.raw("available"), seed, members, names, table.periods)
    available = trace
    notes: tuple[str, ...] = ()
    if table.dated:
        membership, available, notes = lay_dates(
            reader, table, stages[0], members, names, available, rounds
        )
    by_trace = sessions_by_trace(trace, membership, rounds, members, names)
    if by_trace is not None:  # who has no row this week has not left
        membership = by_trace
        available = replace(available, other=None) if isinstance(available, WithRows) else None
    stream: Stream | Arrivals | None = table.arrivals
    if stream is None:
        stream = read_stream(reader.raw("stream"), rounds, holders.samples is not None)
    if held_out is not None and stream is None:  # in a stream the next rows are for scores
        stages = hold_out(stages, members, held_out, seed, _tested(spec))
    bias = read_bias(reader.raw("bias"), seed)
    if bias is not None:
        sort = stream is not None
        pool, stages = with_bias(bias, pool, stages, members, classes, sort)
    world = Composed(
        dict(spec), seed, float(validation), rounds, members, classes, pool, test_pool,
        membership, concepts, stages, hidden, available, stream, bias, settled, held_out,
        names, table.periods, notes,
    )  # fmt: skip
    _check_reached(world)
    return world


# what goes by the one class of a row: keys of a world
BY_CLASS = ("drift", "labels", "overlap", "shared", "stages", "classes", "cumulative", "unseen")
# and partitions that do not
OF_ANY_ROWS = ("iid", "natural", "time")


def _of_any_rows(spec: Any, dataset: Dataset) -> Any:
    """The spec for rows that have no single class: what goes by classes is refused, and rows are
    dealt ``iid`` unless it says otherwise."""
    if not isinstance(spec, Mapping):
        return spec
    y = f"y of {dataset.name!r} is {TARGET_WORDS[dataset.target]} (target: {dataset.target})"
    bias = spec.get("bias")
    by_class = [key for key in BY_CLASS if spec.get(key) not in (None, False, "all", "split", 0)]
    if spec.get("labels") == "split":
        by_class.append("labels")
    if isinstance(bias, Mapping) and bias.get("brightness"):
        by_class.append("bias: {brightness: ...}")
    if spec.get("name") in ("drift", "classes"):
        raise UserError(f"world {spec['name']!r} is for rows with one class each, and {y}; take "
                        f"static, churn or domains.")  # fmt: skip
    if by_class:
        raise UserError(f"world: {by_class[0]} is for rows with one class each, and {y}; leave it "
                        f"out.")  # fmt: skip
    named = spec.get("partition")
    if named is None:
        return {**spec, "partition": "natural" if spec.get("name") in CALENDARS else "iid"}
    name = named.get("name") if isinstance(named, Mapping) else named
    if name not in OF_ANY_ROWS and name in partitions():
        raise UserError(f"partition {name!r} deals rows by their class, and {y}; take "
                        f"{', '.join(OF_ANY_ROWS)}.")  # fmt: skip
    return spec


def _writable(spec: Any) -> dict[str, Any]:
    """A copy of the spec with the short forms of its mappings written out."""
    if not isinstance(spec, Mapping):
        read_world(spec)  # which refuses it
    out = copy.deepcopy(dict(spec))
    if isinstance(out.get("name"), str) and out["name"] in KEYS:
        if out["name"] in CALENDARS and out.get("partition") is None:
            out["partition"] = "natural"  # who is here when is said of members that the data name
        out["partition"] = complete_partition(out.get("partition"), lazy=out.get("lazy") is True)
    if isinstance(out.get("available"), str):
        out["available"] = {"name": out["available"]}
    return out


def _tested(spec: Mapping[str, Any]) -> Callable[[Stage, int], bool]:
    """Whether the data assigns test rows to a member in a stage."""
    natural = natural_clients(spec)

    def tested(stage: Stage, member: int) -> bool:
        rows = stage.block.test_rows_of(member) if natural else None
        return rows is not None and len(rows) > 0

    return tested


def _flow(reader: Reader, members: int, plan: StagePlan, seed: int) -> Membership:
    for key in CHURN:
        if key != "poisson" and reader.given(key):
            reader.bad(key, "left out when 'poisson' says who comes and goes")
    rounds = reader.whole("rounds", plan.rounds or None)
    return read_poisson(reader.raw("poisson"), members, rounds, seed)


def _check_reached(world: Composed) -> None:
    """Refuse a world with a round in which nobody can be reached (where that is cheap to see)."""
    if world.available is None or world.members * world.rounds > CHECKED:
        return
    for round in range(world.rounds):
        if not len(world.here(round)):
            raise UserError(f"available: no member can be reached in round {round}; use a larger "
                            f"share, other traces or more members.")  # fmt: skip


def _rounds(reader: Reader, sessions: int, plan: StagePlan) -> int:
    """``rounds``, or else the longer of the sessions and the stages; the last of each goes on to
    the end."""
    needed = max(sessions, plan.rounds)
    if not needed or reader.given("rounds"):
        rounds = reader.whole("rounds")
        if rounds < needed:
            reader.bad("rounds", f"at least {needed}, which its sessions or stages take")
        return rounds
    return needed


def _hidden(reader: Reader) -> frozenset[Kind]:
    """``hidden: true`` for every shift, or a list of the kinds that nobody is told of."""
    kinds = ("members", "concept", "domain", "classes")
    value = reader.raw("hidden", False)
    if isinstance(value, bool):
        return frozenset(kinds if value else ())
    for kind in value if isinstance(value, list | tuple) else [value]:
        if kind not in kinds:
            reader.bad("hidden", f"true, false or a list of kinds: {suggestion(kind, kinds)}")
    return frozenset(value if isinstance(value, list | tuple) else [value])
