"""A world of quadratic clients, for figures that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from shoal.core.types import ClientData, Kind, Pool, Shift
from shoal.core.world_protocol import Moment


@dataclass(frozen=True)
class Segment:
    """Some rounds with fixed members and losses ``0.5 sum_j a_ij (w_j - b_ij)^2``."""

    rounds: int
    members: tuple[int, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[tuple[float, ...], ...]
    n: tuple[float, ...]
    stats: tuple[tuple[float, ...], ...] = ()  # what each client's batches show, beside ``a``


@dataclass(frozen=True)
class Quadratics:
    """Segments one after another; ``kind`` is what changes between them."""

    segments: tuple[Segment, ...]
    kind: Kind = "members"
    steps_per_epoch: int = 1
    dtype: torch.dtype = torch.float64
    classes: tuple[tuple[int, ...], ...] = ()  # that each segment brings; empty: all

    @property
    def rounds(self) -> int:
        return sum(s.rounds for s in self.segments)

    @property
    def pad(self) -> int:
        return 0

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        out = [0]
        for segment in self.segments[:-1]:
            out.append(out[-1] + segment.rounds)
        return tuple(out)

    def _index(self, round: int) -> int:
        return max(i for i, start in enumerate(self._starts) if start <= round)

    def at(self, round: int) -> Moment:
        i = self._index(round)
        segment, start = self.segments[i], self._starts[i]
        shift = Shift(round, frozenset([self.kind])) if round == start and i > 0 else None
        session, stage = (i, 0) if self.kind == "members" else (0, i)
        since, classes = round - start, self.classes[i] if self.classes else None
        return Moment(round, session, stage, segment.members, shift, since, segment.rounds, classes)

    @property
    def concept_count(self) -> int:
        """Segments that differ by concept are one concept each."""
        return len(self.segments) if self.kind == "concept" else 1

    def concept(self, client: int, round: int) -> int:
        return self._index(round) if self.kind == "concept" else 0

    def concept_shares(self, round: int) -> dict[int, float]:
        return {self.concept(0, round): 1.0}

    def under(self, client: int, concept: int, round: int) -> ClientData:
        """The client's data in the segment of a concept."""
        index = concept if self.kind == "concept" else self._index(round)
        return self._data(client, self.segments[index])

    def train(self, client: int, round: int) -> ClientData:
        return self._data(client, self.segments[self._index(round)])

    def block(self, client: int, round: int) -> int:
        """Every segment brings new data, even of the same values; within one, data stand."""
        return self._index(round)

    def _data(self, client: int, segment: Segment) -> ClientData:
        k = segment.members.index(client)
        rows = self.steps_per_epoch
        seen = segment.stats[k] if segment.stats else ()
        a = torch.tensor([(*segment.a[k], *seen)] * rows, dtype=self.dtype)
        b = torch.tensor([segment.b[k]] * rows, dtype=self.dtype)
        return ClientData(Pool(a, b), torch.arange(rows), b, segment.n[k])

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        """The mean loss of the members here, weighted by their samples."""
        segment = self.segments[self._index(round)]
        a, b, n = (torch.tensor(v, dtype=self.dtype) for v in (segment.a, segment.b, segment.n))
        return {"active": ClientData(Pool(a, b), torch.arange(len(n)), b, float(n.sum()), n)}

    def saved(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "segments": [
                {"rounds": s.rounds, "members": list(s.members), "a": s.a, "b": s.b, "n": s.n}
                for s in self.segments
            ],
        }


Batches = tuple[tuple[tuple[tuple[float, ...], tuple[float, ...]], ...], ...]


@dataclass(frozen=True)
class BatchedQuadratics(Quadratics):
    """One segment whose clients have mini-batches of their own: pairs ``(a, b)`` of one quadratic
    each, by client and batch. A client's loss is their mean, and its rows are its batches."""

    batches: Batches = ()

    @property
    def pad(self) -> int:
        sizes = {len(own) for own in self.batches}
        return 0 if len(sizes) == 1 else max(sizes)

    def _data(self, client: int, segment: Segment) -> ClientData:
        k = segment.members.index(client)
        a, b = (torch.tensor(rows, dtype=self.dtype) for rows in zip(*self.batches[k], strict=True))
        return ClientData(Pool(a, b), torch.arange(len(a)), b, segment.n[k])


def batched(batches: Batches, n: Sequence[float], rounds: int) -> BatchedQuadratics:
    """Clients with these mini-batches, numbered from 0."""
    a, b = [], []
    for own in batches:  # the mean of quadratics is one, but for a constant
        slopes, centres = (torch.tensor(rows).double() for rows in zip(*own, strict=True))
        total = slopes.sum(0)
        a.append((total / len(own)).tolist())
        b.append(((slopes * centres).sum(0) / total.where(total != 0, 1.0)).tolist())
    return BatchedQuadratics((still(a, b, n, rounds),), batches=batches)


def still(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], n: Sequence[float], rounds: int
) -> Segment:
    """A segment whose members are numbered from 0."""
    return Segment(
        rounds,
        tuple(range(len(n))),
        tuple(tuple(row) for row in a),
        tuple(tuple(row) for row in b),
        tuple(n),
    )
