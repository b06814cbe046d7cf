"""From a spec to a world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.types import Kind
from shoal.worlds.classes import group_labels
from shoal.worlds.composed import Composed
from shoal.worlds.concepts import Concepts
from shoal.worlds.domains import lay_out
from shoal.worlds.drifts import read_drifts
from shoal.worlds.holders import Parts, read_holders
from shoal.worlds.membership import churn, still
from shoal.worlds.spec import CHURN, Reader, near, read_world
from shoal.worlds.stages import Plan, hold, read_plan


def build(
    spec: Mapping[str, Any], dataset: Dataset, *, seed: int, validation: float = 0.0
) -> Composed:
    """The world that ``spec`` describes on ``dataset``; the same arguments, the same world.

    >>> from shoal.data.sources import load
    >>> world = build({"name": "still", "members": 4, "rounds": 3}, load("digits"), seed=0)
    >>> world.rounds, list(world.at(0).members)
    (3, [0, 1, 2, 3])
    """
    return assemble(spec, dataset, seed=seed, validation=validation)


def assemble(
    spec: Mapping[str, Any],
    dataset: Dataset,
    *,
    seed: int,
    validation: float = 0.0,
    drawn: Sequence[Parts | None] | None = None,
) -> Composed:
    """Like :func:`build`; ``drawn`` gives the assignments of each stage instead of drawing them."""
    reader = read_world(spec)
    if not 0.0 <= validation < 1.0:
        raise UserError(f"validation is {validation!r}; it must be at least 0 and below 1.")
    holders = read_holders(reader, dataset, seed)
    members = holders.members
    membership = still(members)
    if reader.raw("name") == "churn" or reader.given(*CHURN):
        membership = churn(reader, members)
        labels = group_labels(reader, membership.groups, dataset.classes)
        holders = replace(holders, groups=membership.groups, labels=labels)
    plan = read_plan(reader, dataset.classes)
    rounds = _rounds(reader, membership.rounds, plan)
    concepts = Concepts(members, dataset.classes or 0)
    if reader.raw("name") == "drift" or reader.given("drift"):
        concepts = read_drifts(reader.raw("drift"), members, dataset.classes, rounds, seed)
    hidden = _hidden(reader)
    pool, test_pool, blocks = lay_out(dataset, plan.domains, seed)
    stages = hold(plan, holders, blocks, drawn)
    return Composed(
        dict(spec), seed, float(validation), rounds, members, dataset.classes, pool, test_pool,
        membership, concepts, stages, hidden,
    )  # fmt: skip


def _rounds(reader: Reader, sessions: int, plan: Plan) -> int:
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
    value = reader.raw("hidden")
    if value is None or isinstance(value, bool):
        return frozenset(kinds if value else ())
    for kind in value if isinstance(value, list | tuple) else [value]:
        if kind not in kinds:
            reader.bad("hidden", f"true, false or a list of kinds: {near(kind, kinds)}")
    return frozenset(value if isinstance(value, list | tuple) else [value])
