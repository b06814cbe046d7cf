"""What a round needs to know of the world."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from shoal.core.types import ClientData, Pool, Shift


@dataclass(frozen=True)
class Moment:
    """The world at one round. Sessions and stages are counted from 0."""

    round: int
    session: int
    stage: int
    members: Sequence[int]  # sorted ids of who is here
    shift: Shift | None
    session_round: int  # rounds since the session began
    session_rounds: int  # length of the session
    classes: tuple[int, ...] | None = None  # those that this stage brings; None: all
    draw: int | None = None  # what random keys call this round (a rehearsal has numbers of its own)

    @property
    def key(self) -> int:
        return self.round if self.draw is None else self.draw


class World(Protocol):
    """A population, its data over time, and its events. The same question, the same answer."""

    @property
    def rounds(self) -> int: ...

    @property
    def pad(self) -> int:
        """Rows of the largest client, or 0 when all clients have equally many."""
        ...

    def at(self, round: int) -> Moment: ...

    def train(self, client: int, round: int) -> ClientData: ...

    def block(self, client: int, round: int) -> Hashable:
        """Which block of data the client holds: a name that changes when new data arrive.

        Only the world knows: new data may have the values of older ones.
        """
        ...

    def validation(self, client: int, round: int) -> ClientData | None: ...

    def tests(self, round: int) -> dict[str, ClientData]:
        """Evaluation sets by name: ``active`` (what members hold), ``global``, ``task 0`` ..."""
        ...

    def saved(self) -> dict[str, Any]:
        """Events and assignments as plain JSON values (``world.json``)."""
        ...


class TrainingOnly:
    """What a world says that has rows to train on, the same in all rounds, and no others."""

    def block(self, client: int, round: int) -> int:
        return 0

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}


@runtime_checkable
class Drifting(Protocol):
    """A world whose clients follow concepts, numbered from 0: what an oracle knows of it."""

    @property
    def concept_count(self) -> int: ...

    def concept(self, client: int, round: int) -> int: ...

    def concept_shares(self, round: int) -> dict[int, float]:
        """Share of the members present that has each concept."""
        ...

    def under(self, client: int, concept: int, round: int) -> ClientData:
        """The client's training data as it is, was or will be under a concept."""
        ...


def called(world: World, member: int) -> str:
    """What people call a member: by its name, where the world knows names."""
    names: Sequence[str] | None = getattr(world, "names", None)
    return f"client {member}" if names is None else f"client {names[member]}"


def largest_client(world: World) -> int:
    """Rows of the largest client; 0 where data are elsewhere."""
    first = world.at(0).members
    return world.pad or (len(world.train(int(first[0]), 0)) if len(first) else 0)


def gathered(world: World, client: int, rounds: Sequence[int]) -> ClientData:
    """All that the client held at these rounds; a block that stands for several of them once.

    Which rounds have one block is the world's to say: equal values that came twice count twice.
    Blocks count by their samples: where a row stands for several, it is weighed by them.
    """
    named = {world.block(client, round): round for round in reversed(rounds)}
    blocks = [world.train(client, round) for round in rounds if round in named.values()]
    if len(blocks) == 1:
        return blocks[0]
    labels, count = torch.cat([b.labels for b in blocks]), sum(b.count for b in blocks)
    plain = all(b.weight is None and b.count == len(b) for b in blocks)
    weight = None if plain else torch.cat([_weights(b) for b in blocks])
    pool, rows = blocks[0].pool, torch.cat([b.rows for b in blocks])
    if any(b.pool is not pool for b in blocks):
        pool = Pool(torch.cat([_samples(b) for b in blocks]), labels)
        rows = torch.arange(len(labels), device=rows.device)
    return ClientData(pool, rows, labels, count, weight)


def _samples(data: ClientData) -> torch.Tensor:
    return data.pool.x.index_select(0, data.rows)


def _weights(data: ClientData) -> torch.Tensor:
    """The share of ``count`` that each row stands for."""
    own = data.rows.new_ones(len(data), dtype=torch.float32) if data.weight is None else data.weight
    own = own.to(data.pool.x.dtype if data.pool.x.is_floating_point() else own.dtype)
    return own * (data.count / float(own.sum()))
