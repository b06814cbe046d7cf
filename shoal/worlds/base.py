"""What a round needs to know of the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.types import ClientData, Shift


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

    def validation(self, client: int, round: int) -> ClientData | None: ...

    def tests(self, round: int) -> dict[str, ClientData]:
        """Evaluation sets by name: ``active`` (what members hold), ``global``, ``task 0`` ..."""
        ...

    def saved(self) -> dict[str, Any]:
        """Events and assignments as plain JSON values (``world.json``)."""
        ...
