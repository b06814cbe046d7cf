"""Order, Member, Results, Engine; deltas by embedding row, sums in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from threading import Lock, local
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.machine import use_large_pages
from shoal.core.tree import Tree
from shoal.core.types import ClientData, LastBatch, Model, Reduction
from shoal.engines.client_round import ClientProgram, Given
from shoal.methods.slots import Part
from shoal.methods.view import Clock

# ---- numbers -------------------------------------------------------------------------------------
# Numbers that are the same round after round, as tensors.


@lru_cache(64)
def known(
    numbers: float | tuple[float, ...], dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """A tensor that nobody writes to: it may be somebody else's, too.

    >>> known((1, 2), torch.float32) is known((1, 2), torch.float32)
    True
    """
    with torch.inference_mode(False):  # one that any other mode can use
        return torch.tensor(numbers, dtype=dtype, device=device)


# ---- sparse rows ---------------------------------------------------------------------------------
# Deltas of models with a large embedding, kept as the rows that a client looked up.


@dataclass(frozen=True)
class EmbeddingSpan:
    """Where an embedding stands in a flat vector."""

    begin: int
    rows: int
    width: int

    @property
    def end(self) -> int:
        return self.begin + self.rows * self.width

    def of(self, vector: Tensor) -> Tensor:
        """The table as a view ``[rows, width]``."""
        return vector[self.begin : self.end].view(self.rows, self.width)

    def resized(self, rows: int) -> EmbeddingSpan:
        return EmbeddingSpan(self.begin, rows, self.width)

    def narrowed(self, vector: Tensor, chosen: Tensor, rows: int) -> Tensor:
        """The vector with the table cut to the ``chosen`` rows, then zeros up to ``rows``."""
        small = self.resized(rows)
        out = vector.new_empty(vector.numel() - self.end + small.end)
        out[: self.begin] = vector[: self.begin]
        table = small.of(out)
        torch.index_select(self.of(vector), 0, chosen, out=table[: len(chosen)])
        table[len(chosen) :].zero_()
        out[small.end :] = vector[self.end :]
        return out


@dataclass(frozen=True)
class Scattered:
    """One client's delta ``[1, size]``; rows of the table that were not looked up are zero.

    It stands where a tensor of deltas would, for whoever takes one row or adds it to a sum.
    """

    size: int
    table: EmbeddingSpan
    chosen: Tensor  # row numbers of the whole table
    small: Tensor  # the vector with the chosen rows first in its table

    @property
    def shape(self) -> torch.Size:
        return torch.Size((1, self.size))

    def dim(self) -> int:
        return 2

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.small.element_size()

    def __getitem__(self, row: int) -> Tensor:
        dense = self.small.new_zeros(self.size)
        self.add_to(dense, 1.0)
        return dense

    def dense(self) -> Tensor:
        return self[0].unsqueeze(0)

    def add_to(self, total: Tensor, weight: float) -> None:
        """``total += weight * delta``, touching the rows that were looked up and no others."""
        table, shrunk = self.table, self._shrunk()
        total[: table.begin].add_(self.small[: table.begin], alpha=weight)
        rows = shrunk.of(self.small)[: len(self.chosen)]
        # three times as fast as ``index_add_``
        table.of(total).scatter_add_(0, self.chosen[:, None].expand_as(rows), rows * weight)
        total[table.end :].add_(self.small[shrunk.end :], alpha=weight)

    def _shrunk(self) -> EmbeddingSpan:
        length = self.table.rows * self.table.width - (self.size - self.small.numel())
        return self.table.resized(length // self.table.width)


# ---- lending -------------------------------------------------------------------------------------
# A block as large as a model of ten million numbers comes from the system and goes back to it, and
# every time its pages are zeroed and mapped anew, which costs several passes over it. So a client's
# model, and the sums along the tree, are written where others were before.


class Lender:
    """One engine's; its threads share it.

    A ``room`` is lent to a thread, until the same thread asks for another. A ``vector`` is its
    taker's, who may keep it; it comes again only after it was given back, by who knows that nobody
    else holds it.
    """

    MOST = 2  # vectors that wait to be taken again

    def __init__(self) -> None:
        self._own, self._lock = local(), Lock()
        self._waiting: list[Tensor] = []

    def room(self, clients: int, like: Tensor) -> Tensor:
        """``[clients, P]`` for this thread's models, which stays in the cache from chunk to chunk;
        the last one, as rounds need the same again."""
        room, numbers = getattr(self._own, "room", None), clients * like.numel()
        if room is None or room.numel() < numbers or not _alike(room, like):
            self._own.room = None  # before the next one is made: both may be large
            room = self._own.room = like.new_empty(numbers)
        return room[:numbers].view(clients, like.numel())

    def vector(self, like: Tensor) -> Tensor:
        """Of that shape, with anything in it."""
        with self._lock:
            while self._waiting:
                found = self._waiting.pop()
                if found.shape == like.shape and _alike(found, like):
                    return found
        with torch.inference_mode(False):  # one that any other mode can write to
            new = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        if new.device.type == "cpu":
            use_large_pages(new.data_ptr(), new.nbytes)
        return new

    def give(self, vector: Tensor) -> None:
        """Nobody else holds it, or a view of it."""
        with self._lock:
            if len(self._waiting) < self.MOST and not vector.is_inference():
                self._waiting.append(vector)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


# ---- sums ----------------------------------------------------------------------------------------
# Sums of what clients send, along one fixed tree, whoever computes them.
#
# A sum of floating-point numbers depends on its order in the last bits. Here the order follows from
# the number of chunks alone: ``FAN`` neighbours are added one after another into one vector, then
# ``FAN`` of those sums, and so on. Threads (or machines) may compute any branch at any time; the
# bits at the root are always the same. A round in one thread holds one vector per level of the
# tree.

FAN = 4  # neighbours that are added into one sum
FEW = 100  # numbers up to which Python's sum is cheaper than torch's


class Sums(NamedTuple):
    """What some clients send, added up, each as often as it counts."""

    delta: Tensor  # [P]
    stats: Tensor  # [S]
    payloads: tuple[Tree, ...]  # of parts whose payloads are added up; the empty tuple for others
    # ``delta`` is one client's, whose memory is used again, and counts so often; None: it is a sum,
    # in memory that belongs to whoever is given it
    lent: float | None = None


class SumTree:
    """The tree over so many chunks. Threads may share it.

    A chunk may bring nothing (its clients are judged one by one). A tree over the chunks of one
    branch gives what is put into the whole tree in their place. Where that is a chunk's own place
    (``lends``) it stays as it was lent, since it is multiplied where it is added. Sums that were
    added to others are given back to the ``lender``; the total never is.
    """

    def __init__(self, chunks: int, lends: bool = False, lender: Lender | None = None) -> None:
        self.total: Sums | None = None  # over all chunks, once all have brought theirs
        self._lends, self._lender = lends, lender or Lender()
        self._levels: list[list[_Branch]] = []
        while chunks > 1:
            sizes = [min(FAN, chunks - first) for first in range(0, chunks, FAN)]
            self._levels.append([_Branch(size, self._lender) for size in sizes])
            chunks = len(sizes)

    def put(self, place: int, sums: Sums | None, height: int = 0) -> None:
        """Add the sums of a chunk, or of a branch so many levels above the chunks; what was lent
        is its owner's again afterwards."""
        found = sums
        for level in self._levels[height:]:
            branch = level[place // FAN]
            if not branch.add(place % FAN, found):
                return
            place, found = place // FAN, branch.total
        if found is not None and found.lent is not None:
            lone = found._replace(delta=found.delta.clone()) if self._lends else None
            found = lone or _owned(found, self._lender)
        self.total = found


class _Branch:
    """The sum of a few neighbours, each added when those before it have been."""

    def __init__(self, size: int, lender: Lender) -> None:
        self.total: Sums | None = None
        self._size, self._next, self._lender = size, 0, lender
        self._early: dict[int, tuple[Sums | None, bool]] = {}  # and whether it is a copy of ours
        self._lock = Lock()

    def add(self, place: int, sums: Sums | None) -> bool:
        """Add what one of them brings; whether it was the last that was missing."""
        with self._lock:
            copied = False
            if place > self._next and sums is not None and sums.lent is not None:
                # a copy, not yet multiplied: rounding must not depend on who comes early
                copied, own = True, self._lender.vector(sums.delta)
                sums = sums._replace(delta=own.copy_(sums.delta))
            self._early[place] = sums, copied
            while self._next in self._early:
                self._take(*self._early.pop(self._next))
                self._next += 1
            return self._next == self._size

    def _take(self, more: Sums | None, copied: bool) -> None:
        if more is None:
            return
        if self.total is None:
            self.total = _owned(more, self._lender)
        else:
            self.total.delta.add_(more.delta, alpha=1.0 if more.lent is None else more.lent)
            pairs = zip(tree.leaves(self.total[1:3]), tree.leaves(more[1:3]), strict=True)
            for one, other in pairs:
                one.add_(other)
        if more.delta is not self.total.delta and (copied or more.lent is None):
            self._lender.give(more.delta)


def _owned(sums: Sums, lender: Lender) -> Sums:
    """In memory of its own, and counted once."""
    if sums.lent is None:
        return sums
    own = torch.mul(sums.delta, sums.lent, out=lender.vector(sums.delta))
    return sums._replace(delta=own, lent=None)


def weighted_sum(rows: Tensor, weights: Sequence[float] | None) -> Tensor:
    """The sum of rows, each as often as it counts (None: once), in memory of its own."""
    if not rows.numel():
        return rows.new_zeros(rows.shape[1:])
    alone = rows.shape[0] == 1
    if weights is None or set(weights) == {1.0}:
        return rows[0].clone() if alone else rows.sum(0)
    if alone:
        return rows[0] * weights[0]
    own = known(tuple(weights), rows.dtype, rows.device)
    found: Tensor = torch.mv(rows.t(), own) if rows.dim() == 2 else torch.tensordot(own, rows, 1)
    return found


def payload_sums(
    parts: Sequence[Part], payloads: tuple[Tree, ...], weights: Sequence[float] | None
) -> tuple[Tree, ...]:
    """Payloads added up as their parts say; the empty tuple where rows are kept apart."""
    found: list[Tree] = []
    for part, payload in zip(parts, payloads, strict=True):
        if not tree.leaves(payload) or part.reduction is Reduction.STACK:
            found.append(())
            continue
        own = weights if part.reduction is Reduction.MEAN else None
        found.append(tree.apply(partial(weighted_sum, weights=own), payload))
    return tuple(found)


def all_finite(values: Tree) -> bool:
    """Whether every number is finite; a sum passes over nothing, and costs less than a look at
    each number."""
    for leaf in tree.leaves(values):
        if leaf.is_floating_point() and leaf.numel():
            few = leaf.numel() <= FEW
            if not math.isfinite(sum(leaf.flatten().tolist()) if few else float(leaf.sum())):
                return False
    return True


# ---- api -----------------------------------------------------------------------------------------
# What an engine is given and what it gives back.


class Member(NamedTuple):
    """One client's share of an order."""

    client: int
    train: ClientData
    validation: ClientData | None
    memories: tuple[Tree, ...] | None  # None: never seen
    steps: int | None = None  # at most so many local steps


@dataclass(frozen=True)
class Order:
    """Train these members from this model. Complete: an engine needs nothing else."""

    program: ClientProgram
    model: Model  # what goes down
    initial: Tensor
    sent: tuple[Tree, ...]
    members: tuple[Member, ...]
    rates: tuple[float, ...]  # one per local epoch
    seed: int
    round: int
    session: int
    stage: int
    batch: int | None  # rows per step; None: all of a client's rows
    pad: int  # run-wide length of a ragged batch; 0: every client has equally many rows
    shuffle: bool = True
    uniform: bool | None = None  # how uploads will be weighed; None: an engine need not add up
    summed: bool = False  # nobody looks at a single delta, as long as all of them are finite
    last_batch: LastBatch = "keep"  # what becomes of rows that do not fill a batch
    longest: int = 0  # rows of the largest client of the whole order, where this is a part of it
    # number and payload of the newest session_end by part, where clients keep their memories
    ends: tuple[tuple[int, tuple[int, Tree]], ...] = ()

    @property
    def epochs(self) -> int:
        return len(self.rates)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of every member."""
        return tuple([m.train.rows.size(0) for m in self.members])

    def clock(self, epoch: int) -> Clock:
        return Clock(self.round, self.session, self.stage, epoch, self.epochs)

    def given(self, member: Member) -> Given:
        """What the member holds fixed over the round; makes first memories where needed."""
        theta = self.model.theta
        count = torch.tensor(member.train.count, dtype=theta.dtype, device=theta.device)
        given = Given(theta, self.initial, self.model.stats, count, (), self.sent)
        memories = member.memories
        if memories is None or any(m is None for m in memories):
            first = self.program.first_memories(given, self.clock(0), member.client)
            kept = memories or (None,) * len(first)
            memories = tuple(f if k is None else k for f, k in zip(first, kept, strict=True))
        return given._replace(memories=memories)


class Results(NamedTuple):
    """What some clients of an order did, stacked along the first axis, in the order's order.

    An engine may add up what finite uploads of an order send, where the order says how they weigh
    (``uniform``) and that nobody looks at single ones (``summed``), who might turn one away: such
    results are ``counted``, their ``delta`` has no rows, and the sum over all of them comes with
    the last results of the order. An engine that has seen each client's ``norms`` says them.
    """

    clients: tuple[int, ...]
    counts: tuple[float, ...]
    delta: Tensor | Scattered  # [C, P], or [0, P]
    stats: Tensor  # [C, S]
    payloads: tuple[Tree, ...]
    memories: tuple[Tree, ...]
    steps: tuple[int, ...]
    samples: tuple[int, ...]
    epochs: tuple[int, ...]
    norms: tuple[float, ...] | None = None
    counted: bool = False
    sums: Sums | None = None  # of all counted results of the order


class Engine(Protocol):
    """Runs orders. Results come in the order of the members, however they were computed."""

    name: str

    def train(self, order: Order) -> Iterator[Results]: ...

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]: ...

    def close(self) -> None: ...


def spans(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut ``range(total)`` into pieces of the given sizes, the largest first.

    >>> list(spans(11, [8, 4, 2, 1]))
    [(0, 8), (8, 10), (10, 11)]
    """
    start = 0
    for size in sorted(sizes, reverse=True):
        while total - start >= size:
            yield start, start + size
            start += size
