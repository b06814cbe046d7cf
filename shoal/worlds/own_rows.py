"""The rows that one member is scored on: its own, and none that was trained on.

Kinds of rows, as records name them:

    test          test rows that the data assigns to the member (a natural client's)
    held out      a share of the member's rows that was split off first
    next          in a stream, the rows that the member meets next
    validation    version 0.1's rule (``evaluate.held_out: null``): rows of ``local.validation``
    training      the same rule, where the member has no validation rows
    problem       the loss itself, of a problem that has no rows (``problem: quadratic``)
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

from shoal.core.types import ClientData
from shoal.core.world_protocol import World
from shoal.worlds.changes.stages import stage_at
from shoal.worlds.members.population import natural_clients
from shoal.worlds.quadratic import Quadratics
from shoal.worlds.world import Composed

Kind = Literal["test", "held out", "next", "validation", "training", "problem"]


class Own(NamedTuple):
    """What a member is scored on."""

    kind: Kind
    data: ClientData


@runtime_checkable
class HoldsOut(Protocol):
    """A world of a user's own that holds rows out for members' own scores."""

    def own(self, client: int, round: int) -> ClientData | None:
        """Rows that nobody trains on; None where the member has none."""
        ...


def knows_own_rows(world: World) -> bool:
    """Whether members of a world can be scored on rows that nobody trains on."""
    if isinstance(world, Composed):
        held = world.own_share is not None or world.stream is not None
        return held or any(stage.block.test_rows_of(0) is not None for stage in world.stages)
    return isinstance(world, Quadratics | HoldsOut)


def own_rows(world: World, client: int, round: int) -> Own | None:
    """What the member's own score is measured on; None where the member cannot be scored."""
    if isinstance(world, Quadratics):
        return Own("problem", world.train(client, round))
    if isinstance(world, Composed):
        if world.stream is None:
            test = own_test(world, client, round)
            if test is not None:
                return Own("test", test)
        held = world.own(client, round)
        kind: Kind = "held out" if world.stream is None else "next"
        return None if held is None else Own(kind, held)
    held = world.own(client, round) if isinstance(world, HoldsOut) else None
    return None if held is None or not len(held) else Own("held out", held)


def own_rows_0_1(world: World, client: int, round: int, natural: bool) -> Own:
    """Version 0.1's rule: validation rows, else training rows; with ``natural``
    (``members_held_out_by_samples``, and scores of local models) test rows of the natural client
    come first."""
    test = own_test(world, client, round) if natural else None
    if test is not None:
        return Own("test", test)
    data = world.validation(client, round)
    if data is None or len(data) == 0:
        return Own("training", world.train(client, round))
    return Own("validation", data)


def own_test(world: World, client: int, round: int) -> ClientData | None:
    """The test rows of the member's natural client, labels as its concept has them now.

    None where members are not natural clients, the data does not say whose test rows are whose, or
    the member has none.
    """
    if not isinstance(world, Composed) or not natural_clients(world.spec):
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
