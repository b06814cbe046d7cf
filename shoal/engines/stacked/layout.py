"""Members of an order as tensors, in running order; an epoch's rows and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from shoal.core import tree
from shoal.core.layers.drawing import step_keys
from shoal.core.tree import Tree
from shoal.core.types import Batch, ClientData
from shoal.engines.api import Member, Order, known
from shoal.engines.client_round import Given, WholeData
from shoal.engines.compiler.compile import Replay
from shoal.engines.compiler.graph import Steps
from shoal.engines.loop import (
    batch_rows,
    epoch_order,
    number_type,
    padded_rows,
    rows_taken,
    step_noise,
    step_rows,
    steps_an_epoch,
    whole,
)
from shoal.engines.stacked.plan import LENGTHS, LENGTHS_ALONE, padded_size, real_lengths, short_rows

# ---- epoch ---------------------------------------------------------------------------------------
# A chunk's rows in the order of one epoch, and the batches cut from them.

GATHER_BYTES = 2**20


class Piece(NamedTuple):
    """Clients ``begin..end`` of a chunk that take the same kind of batch at a step."""

    begin: int
    end: int
    length: int  # rows of the batch, padding included
    weighted: bool  # some rows may be padding


@dataclass
class Shared:
    """What chunks that are parts of one layout find out once for all of them: what was drawn for
    each epoch, and which compiled steps they take (by clients, rows of a batch and epoch)."""

    replays: dict[tuple[int, int, int], Replay] = field(default_factory=dict)
    epochs: dict[int, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def of(
        self, epoch: int, draw: Callable[[int], tuple[Tensor, Tensor, Tensor | None]]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, labels and weights in the order of the epoch."""
        with self.lock:  # whichever thread comes first draws for everybody
            if epoch not in self.epochs:
                self.epochs[epoch] = draw(epoch)
            return self.epochs[epoch]


@dataclass(frozen=True)
class Epoch:
    """Rows of some clients in the order of one epoch."""

    order: Order
    pool_x: Tensor
    counts: tuple[int, ...]
    rows: Tensor
    labels: Tensor
    weights: Tensor | None
    keys: Tensor | None = None  # [steps, C], where batches need one

    def steps(self, count: int, begin: int = 0, length: int | None = None) -> Steps:
        """What ``count`` steps of one length read from row ``begin`` on, ``[C, B, ...]`` each.

        Several are gathered at once, as many as stay in the cache, with the step as the first
        axis, so that a step's batch is contiguous and costs no call of its own.
        """
        full = batch_rows(self.order, self.counts[0])
        length = length or full
        rows, labels, weights = self.rows, self.labels, self.weights
        if begin or count * length < rows.shape[1]:
            span = slice(begin, begin + count * length)
            rows, labels = rows[:, span], labels[:, span]
            weights = None if weights is None else weights[:, span]
        return self._stepwise(rows, labels, weights, self._keys(begin // full, count), count)

    def stretch(self, piece: Piece, step: int, count: int, begin: int, end: int) -> Steps:
        """What some clients of a piece read in ``count`` steps from this one on."""
        first = step * batch_rows(self.order, self.counts[piece.begin])
        every = piece._replace(length=count * piece.length)
        span = slice(first, first + every.length)
        rows, labels = self.rows[begin:end, span], self.labels[begin:end, span]
        weight = None if self.weights is None else self.weights[begin:end, span]
        if piece.weighted:
            rows, labels, weight = self._padded(rows, labels, weight, every, first, begin, end)
        keys = self._keys(step, count, begin, end)
        return self._stepwise(rows, labels, weight, keys, count)

    def every_step(self, steps: Sequence[int], stack: int) -> Steps:
        """What all steps of an epoch read, padded to ``stack`` clients; client i takes
        ``steps[i]`` of them, and what it reads after those weighs nothing."""
        length = batch_rows(self.order, self.counts[0])
        width, spare = max(steps) * length, stack - len(steps)
        limits = [min(n, own * length) for n, own in zip(self.counts, steps, strict=True)]
        real = self._real(0, width, [*limits, *[0] * spare])
        rows, labels = (_grown(column, width, stack) for column in (self.rows, self.labels))
        if self.weights is not None:
            real = real * _grown(self.weights, width, stack)
        keys = self._keys(0, max(steps))
        if keys is not None and spare:
            keys = torch.cat([keys, keys[:, -1:].expand(-1, spare)], 1)
        return self._stepwise(rows, labels, real, keys, max(steps))

    def _keys(self, step: int, count: int, begin: int = 0, end: int | None = None) -> Tensor | None:
        """What some clients draw with in ``count`` steps from this one on."""
        return None if self.keys is None else self.keys[step : step + count, begin:end]

    def _stepwise(
        self,
        rows: Tensor,
        labels: Tensor,
        weight: Tensor | None,
        keys: Tensor | None,
        count: int,
    ) -> Steps:
        """``[C, count * B]`` columns with the step as the first axis, ``B`` rows each."""
        x, clients, length = self.pool_x, rows.shape[0], rows.shape[1] // count
        shape = (clients, count, length)
        chosen = rows.reshape(shape).transpose(0, 1).reshape(count, -1)
        rest = [
            column.reshape(*shape, *column.shape[2:]).transpose(0, 1).contiguous()
            for column in (labels, weight)
            if column is not None
        ]
        rest += [] if keys is None else [keys.contiguous()]
        sample = x.shape[1:]
        row_bytes = max(1, sample.numel() * x.element_size())
        many = max(1, GATHER_BYTES // (row_bytes * clients * length))
        return Steps(x, chosen, rest, [clients, length, *sample], many)

    def batch(self, piece: Piece, step: int, begin: int, end: int) -> Batch:
        """``[end - begin, length, ...]`` rows of this step for some clients of a piece."""
        first = step * batch_rows(self.order, self.counts[piece.begin])
        span = slice(first, first + piece.length)
        rows, labels = self.rows[begin:end, span], self.labels[begin:end, span]
        weight = None if self.weights is None else self.weights[begin:end, span]
        if piece.weighted:
            rows, labels, weight = self._padded(rows, labels, weight, piece, first, begin, end)
        x = self.pool_x
        found = x.index_select(0, rows.reshape(-1))
        # dense: as a view they would have the strides of the chunk's largest client, and a step is
        # traced anew for other strides
        weight = None if weight is None else weight.contiguous()
        found = found.view(end - begin, piece.length, *x.shape[1:])
        keys = self._keys(step, 1, begin, end)
        key = None if keys is None else keys[0].contiguous()
        return Batch(found, labels.contiguous(), weight, key)

    def _padded(
        self,
        rows: Tensor,
        labels: Tensor,
        weight: Tensor | None,
        piece: Piece,
        first: int,
        begin: int,
        end: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        missing = piece.length - rows.shape[1]
        if missing > 0:
            rows, labels = _grown(rows, piece.length), _grown(labels, piece.length)
        real = self._real(first, piece.length, self.counts[begin:end])
        if weight is not None:
            real = real * torch.nn.functional.pad(weight, (0, max(0, missing)))
        return rows, labels, real

    def _real(self, first: int, width: int, ends: Sequence[int]) -> Tensor:
        """1 at places before each client's end, of ``width`` places from ``first`` on."""
        here = self.rows.device
        position = torch.arange(first, first + width, device=here)
        before = position[None, :] < torch.tensor(ends, device=here)[:, None]
        return before.to(self.order.model.theta.dtype)


def _grown(column: Tensor, width: int, stack: int = 0) -> Tensor:
    """``[C, n, ...]`` as ``[stack, width, ...]``: each client's first entry again, and the last
    client again."""
    column = column[:, :width]
    clients, missing = column.shape[0], width - column.shape[1]
    if missing:
        first = column[:, :1].expand(clients, missing, *column.shape[2:])
        column = torch.cat([column, first], 1)
    spare = stack - clients
    if spare > 0:
        column = torch.cat([column, column[-1:].expand(spare, *column.shape[1:])])
    return column


# ---- layout --------------------------------------------------------------------------------------
# Some clients of an order, laid out as tensors with the client as the first axis.


@dataclass(frozen=True)
class Chunk:
    """Members in the order in which they run: those with the most steps first."""

    order: Order
    members: tuple[Member, ...]
    places: tuple[int, ...]  # where each member was before they were put in running order
    rows: Tensor  # [C, n] rows of the pool, padded with the client's first
    labels: Tensor  # [C, n, ...]
    weights: Tensor | None  # [C, n] of the rows inside the loss
    counts: tuple[int, ...]
    even: bool  # whether all clients have equally many rows and no cap on their steps
    cut_from: Chunk | None = field(default=None, repr=False)  # the layout that this is a part of
    begin: int = 0  # where in it
    shared: Shared = field(default_factory=Shared, repr=False)  # with all parts of a layout

    @classmethod
    def of(cls, order: Order, members: Sequence[Member]) -> Chunk:
        """Lay out members; they must share one pool."""
        places = tuple(range(len(members)))
        counts = order.sizes
        if members is not order.members:
            counts = tuple([len(m.train) for m in members])
        capped = any([m.steps is not None for m in members])
        level = min(counts) == max(counts)
        if capped or not level:
            caps = [2**40 if m.steps is None else m.steps for m in members]
            places = tuple(sorted(places, key=lambda i: (-caps[i], -counts[i])))
            members, counts = [members[i] for i in places], tuple([counts[i] for i in places])
        data = [m.train for m in members]
        columns = [d.rows for d in data], [d.labels for d in data]
        rows, labels = map(torch.stack, columns) if level else own_padding(counts, *columns)
        weights = None
        like = next((d.weight for d in data if d.weight is not None), None)
        if like is not None:
            like = like.to(number_type(data[0].pool.x))
            own = [like.new_ones(len(d)) if d.weight is None else d.weight.to(like) for d in data]
            weights = pad_sequence(own, True)
        even = level and not capped
        return cls(order, tuple(members), places, rows, labels, weights, counts, even)

    def part(self, begin: int, end: int) -> Chunk:
        """Clients ``begin..end`` as views; what an epoch draws is drawn once for all parts."""
        if (begin, end) == (0, len(self.members)):
            return self
        weights = None if self.weights is None else self.weights[begin:end]
        places = tuple(p - begin for p in self.places[begin:end])
        return Chunk(
            self.order,
            self.members[begin:end],
            places,
            self.rows[begin:end],
            self.labels[begin:end],
            weights,
            self.counts[begin:end],
            self.even,
            self,
            begin,
            self.shared,
        )

    def some(self, keep: Sequence[int]) -> Chunk:
        """These clients, who stay in running order; their rows are as long as before."""
        index = torch.tensor(keep, device=self.rows.device)
        members = tuple([self.members[i] for i in keep])
        counts = tuple([self.counts[i] for i in keep])
        level = min(counts) == max(counts)
        return Chunk(
            self.order,
            members,
            tuple(range(len(keep))),
            self.rows.index_select(0, index),
            self.labels.index_select(0, index),
            None if self.weights is None else self.weights.index_select(0, index),
            counts,
            level and all([m.steps is None for m in members]),
        )

    @property
    def pool_x(self) -> Tensor:
        return self.members[0].train.pool.x

    def given(self) -> Given:
        """Memories stacked over clients; what all clients share is not."""
        return given_to(self.order, self.members)

    def local(self) -> WholeData:
        """All data of every client, padded, as far as the method asks to see it."""
        program, unequal = self.order.program, self.order.pad > 0
        train = validation = None
        if program.needs_train:
            train = stacked_whole([m.train for m in self.members], unequal=unequal)
        if program.needs_validation:
            held = [m.validation or m.train for m in self.members]
            validation = stacked_whole(held, unequal=unequal)
        return WholeData(train, validation)

    def steps_each(self, done: Sequence[int]) -> list[int]:
        """How many steps each client takes in the next epoch, after so many ``done``."""
        if self.even:
            return [steps_an_epoch(self.order, self.counts[0])] * len(self.members)
        out = []
        for member, rows, before in zip(self.members, self.counts, done, strict=True):
            left, cap = steps_an_epoch(self.order, rows), member.steps
            out.append(left if cap is None else max(0, min(left, cap - before)))
        return out

    def regular(self, steps: Sequence[int]) -> int:
        """Leading steps in which every client takes a full batch of the same length."""
        if self.even:
            return min(steps[0], _full_steps(self.order, self.counts[0]))
        if len({batch_rows(self.order, rows) for rows in self.counts}) > 1:
            return 0
        full = (_full_steps(self.order, rows) for rows in self.counts)
        return min(map(min, steps, full))

    def stretches(self, first: int, steps: Sequence[int]) -> Iterator[tuple[int, int, list[Piece]]]:
        """From step ``first`` on: a step, how many in a row are taken by the same clients with the
        same kinds of batches, and those."""
        # padded batches are all of one kind, so a stretch lasts until somebody is done
        ends = None
        if self.order.pad:
            ends = sorted(e for e in {*steps, *self._before_merged(steps)} if e > first)
        for end in ends or range(first + 1, max(steps) + 1):
            yield first, end - first, list(self.pieces(first, steps))
            first = end

    def _before_merged(self, steps: Sequence[int]) -> set[int]:
        """How many steps clients take before one with merged rows, which is of another kind."""
        if self.order.last_batch != "merge":
            return set()
        return {_full_steps(self.order, n) for n, s in zip(self.counts, steps, strict=True) if s}

    def pieces(self, step: int, steps: Sequence[int]) -> Iterator[Piece]:
        """Contiguous clients that take this step with the same kind of batch."""
        begin, kind = 0, self._kind(0, step, steps)
        for i in range(1, len(steps) + 1):
            now = self._kind(i, step, steps) if i < len(steps) else None
            if now != kind:
                if kind is not None:
                    yield Piece(begin, i, *kind)
                begin, kind = i, now

    def _kind(self, i: int, step: int, steps: Sequence[int]) -> tuple[int, bool] | None:
        """Length of a client's batch at a step, and whether rows may be padding; None: no batch."""
        if step >= steps[i]:
            return None
        order, rows = self.order, self.counts[i]
        own = step_rows(order, rows, step)
        if not order.pad or (own > 1 and real_lengths(order)):
            return own, False
        length = padded_rows(order, rows, step)
        if len(self.members) == 1 and not (order.program.noisy or order.program.draws_by_length):
            length = min(length, short_rows(own, length))
        return length, True

    # ---- what is drawn ----
    def epoch(self, epoch: int) -> Epoch:
        """The rows and labels of this epoch in their drawn order."""
        if self.cut_from is None:
            rows, labels, weights = self.shuffled(epoch)
        else:
            span = slice(self.begin, self.begin + len(self.members))
            tensors = self.shared.of(epoch, self.cut_from.shuffled)
            rows, labels, weights = tree.apply(lambda leaf: leaf[span], tensors)
        keys = None
        if self.order.program.draws:
            clients = [m.client for m in self.members]
            steps = range(max(steps_an_epoch(self.order, rows) for rows in set(self.counts)))
            keys = step_keys(self.order.seed, self.order.round, clients, epoch, steps)
            keys = keys.to(self.rows.device)
        return Epoch(self.order, self.pool_x, self.counts, rows, labels, weights, keys)

    def shuffled(self, epoch: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, labels and weights of all clients in the order of one epoch."""
        if not self.order.shuffle:
            return self.rows, self.labels, self.weights
        width = self._read()
        clients = [m.client for m in self.members]
        positions = epoch_order(self.order, clients, list(self.counts), epoch, width)
        positions = positions.to(self.rows.device)
        index = positions.reshape(*positions.shape, *(1,) * (self.labels.dim() - 2))
        labels = self.labels.gather(1, index.expand(*positions.shape, *self.labels.shape[2:]))
        weights = None if self.weights is None else self.weights.gather(1, positions)
        return self.rows.gather(1, positions), labels, weights

    def _read(self) -> int:
        """How many rows a client takes in an epoch, at most."""
        pairs = zip(self.members, self.counts, strict=True)
        return max([n if m.steps is None else rows_taken(self.order, n, m.steps) for m, n in pairs])

    def noise(self, epoch: int, step: int, begin: int, end: int) -> tuple[Tree, ...]:
        """Every part's noise for clients ``begin..end``."""
        clients = [m.client for m in self.members[begin:end]]
        return step_noise(self.order, clients, epoch, step)


def _full_steps(order: Order, rows: int) -> int:
    """How many steps of an epoch, from the first on, have a full batch and no more."""
    size = batch_rows(order, rows)
    merged = order.last_batch == "merge" and rows > size and rows % size > 0
    return rows // size - merged


def given_to(order: Order, members: Sequence[Member]) -> Given:
    """What clients hold fixed over a round: memories stacked, the rest shared by all."""
    theta = order.model.theta
    counts = known(tuple([m.train.count for m in members]), theta.dtype, theta.device)
    batches = None
    if order.program.counts_batches:
        numbers = [steps_an_epoch(order, len(m.train)) for m in members]
        batches = known(tuple(map(float, numbers)), theta.dtype, theta.device)
    memories: tuple[Tree, ...] = ((),) * len(order.program.method.parts)
    if order.program.keeps_memory:
        memories = tree.stack([_memories(order, m) for m in members])
    model = order.model
    return Given(theta, order.initial, model.stats, counts, memories, order.sent, batches)


def _memories(order: Order, member: Member) -> tuple[Tree, ...]:
    """The member's memories; made anew only where something is missing."""
    kept = member.memories
    if kept is not None and all(own is not None for own in kept):
        return kept
    return order.given(member).memories


def stacked_whole(data: Sequence[ClientData], length: int = 0, unequal: bool = False) -> Batch:
    """``[C, n, ...]`` with padding weighed 0, or no weights when all clients are equally long.

    Where they are not, or others are not (``unequal``), ``n`` is a little more than the longest:
    what is done with such batches is recorded for each length, and cohorts of unequal clients would
    have a new one in every round. With a ``length`` it is that, and rows have weights whoever the
    clients are.
    """
    parts = [whole(d) for d in data]
    sizes = [p.x.shape[0] for p in parts]
    even = not unequal and min(sizes) == max(sizes) and all(p.weight is None for p in parts)
    if even and not length:
        return Batch(torch.stack([p.x for p in parts]), torch.stack([p.y for p in parts]))
    ones = [p.x.new_ones(p.x.shape[0]) if p.weight is None else p.weight for p in parts]
    length = length or padded_size(max(sizes), LENGTHS_ALONE if len(data) == 1 else LENGTHS)
    weight = pad_sequence(ones, True)
    x, y = own_padding(sizes, [p.x for p in parts], [p.y for p in parts], length=length)
    return Batch(x, y, pad(weight, (0, length - weight.shape[1])))


def own_padding(counts: Sequence[int], *columns: Sequence[Tensor], length: int = 0) -> list[Tensor]:
    """Columns of several clients as one, each padded with its own first entry: nothing of another
    client's, and nothing that a network has never seen."""
    sizes = np.array(counts)[:, None]
    place = np.arange(max(length, max(counts)))
    # one selection for all: a round of small clients would be made of little else
    chosen = np.where(place < sizes, place, 0) + sizes.cumsum()[:, None] - sizes
    index = torch.from_numpy(chosen.reshape(-1)).to(columns[0][0].device)
    every = [torch.cat(column) for column in columns]  # type: ignore[arg-type]
    return [e.index_select(0, index).view(len(counts), -1, *e.shape[1:]) for e in every]
