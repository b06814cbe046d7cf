"""Memories that stay on the machines where clients were trained: what stands for them here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.core import tree
from shoal.core.tree import Tree

if TYPE_CHECKING:
    from shoal.rounds.client_memories import Folder, Memories, OnDisk


class Block(Protocol):
    """What some clients remember, one row per client. It outlives the machines that hold it."""

    count: int

    def read(self, row: int) -> Memories:
        """One client's memories, in memory of their own."""

    def on_disk(self, folder: Folder) -> Sequence[OnDisk]:
        """All rows in a file of this machine, written when that is first asked for."""


@dataclass(frozen=True, eq=False, slots=True)
class Away:
    """One part's memory of one client. No tensor and no tuple: a tree sees one leaf."""

    block: Block
    row: int
    part: int
    nbytes: int

    def read(self) -> Tree:
        return self.block.read(self.row)[self.part]


@dataclass(frozen=True, eq=False, slots=True)
class AwayRows:
    """The same of ``count`` clients from row ``first`` on, as results bring it."""

    block: Block
    first: int
    count: int
    part: int
    nbytes: int  # of each


def block_of(memories: Memories) -> Block | None:
    """Where a client's memories are, if they are elsewhere."""
    for own in memories:
        if isinstance(own, Away):
            return own.block
    return None


def here(memories: Memories) -> Memories:
    """The memories themselves."""
    if block_of(memories) is None:
        return memories
    return tuple([own.read() if isinstance(own, Away) else own for own in memories])


def saved(memories: Memories, folder: Folder) -> Memories | OnDisk:
    """A client's memories as a checkpoint takes them: those that are elsewhere are on disk, too."""
    away = next((own for own in memories if isinstance(own, Away)), None)
    if away is None:
        return memories
    found = away.block.on_disk(folder)[away.row]
    for part, own in enumerate(memories):
        found = found.without(part) if own is None else found
    return found


def each_client(memories: Memories) -> list[Memories]:
    """Memories of a stack of clients, client by client, in memory of their own: a view would keep
    the whole stack alive for one client. What is elsewhere stays there."""
    away = next((own for own in memories if isinstance(own, AwayRows)), None)
    if away is None:
        return tree.unstack(memories)
    return [
        tuple(
            [
                Away(own.block, own.first + row, own.part, own.nbytes)
                if isinstance(own, AwayRows)
                else own
                for own in memories
            ]
        )
        for row in range(away.count)
    ]
