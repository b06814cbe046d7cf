"""The event stream: what changes at which round, and whether the federation is told."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from shoal.types import Kind, Shift
from shoal.worlds.classes import Labels
from shoal.worlds.concepts import Concepts
from shoal.worlds.domains import Block
from shoal.worlds.membership import Membership
from shoal.worlds.population import Population


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
    block: Block
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
