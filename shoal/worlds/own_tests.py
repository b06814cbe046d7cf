"""The test rows that belong to one member, where the data says whose they are."""

from __future__ import annotations

from shoal.types import ClientData
from shoal.worlds.base import World
from shoal.worlds.composed import Composed
from shoal.worlds.timeline import stage_at


def own_test(world: World, client: int, round: int) -> ClientData | None:
    """The test rows of the member's natural client, labels as its concept has them now.

    None where members are not natural clients, the data does not say whose test rows are whose, or
    the member has none.
    """
    if not isinstance(world, Composed):
        return None
    named = world.spec.get("partition")
    if (named.get("name") if isinstance(named, dict) else named) != "natural":
        return None
    stage, concept = stage_at(world.stages, round), world.concept(client, round)
    key = ("own test", client, concept, stage)
    known = world.cache.get(key)
    if known is not None:
        return known
    rows = world.stages[stage].block.test_rows_of(client)
    if rows is None or not len(rows):
        return None
    rows = rows.to(world.test_pool.y.device)
    labels = world.concepts.relabel(world.test_pool.y[rows], concept)
    return world.cache.put(key, ClientData(world.test_pool, rows, labels, float(len(rows))))
