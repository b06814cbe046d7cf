"""Some clients of an order, laid out as tensors with the client as the first axis.

A chunk may hold clients of several orders that step together (the same program at the same moment
of several runs); then what an order gives to its clients is laid out by client too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from shoal import tree
from shoal.engines.base import Member, Order
from shoal.engines.batches import batch_rows, epoch_order, step_noise, steps_an_epoch
from shoal.engines.epoch import Drawn, Epoch, Piece
from shoal.engines.numbers import known
from shoal.engines.whole import stacked_whole
from shoal.local import Given, Local
from shoal.tree import Tree


class Seat(NamedTuple):
    """A member and the number of its order."""

    owner: int
    member: Member


@dataclass(frozen=True)
class Chunk:
    """Members in the order in which they run: those with the most steps first."""

    orders: tuple[Order, ...]
    seats: tuple[Seat, ...]
    places: tuple[int, ...]  # where each seat was before they were put in running order
    rows: Tensor  # [C, n] rows of the pool, padded with the first
    labels: Tensor  # [C, n, ...]
    weights: Tensor | None  # [C, n] of the rows inside the loss
    counts: tuple[int, ...]
    even: bool  # whether all clients have equally many rows and no cap on their steps
    whole: Chunk | None = field(default=None, repr=False)  # what this one was cut from
    begin: int = 0  # where in it
    drawn: Drawn = field(default_factory=Drawn, repr=False)

    @classmethod
    def of(cls, orders: Sequence[Order], seats: Sequence[Seat]) -> Chunk:
        """Lay out members; they must share one pool."""
        places = tuple(range(len(seats)))
        counts = tuple([len(s.member.train) for s in seats])
        capped = any([s.member.steps is not None for s in seats])
        level = min(counts) == max(counts)
        if capped or not level:
            places = tuple(sorted(places, key=lambda i: _fewest_last(seats[i].member)))
            seats, counts = [seats[i] for i in places], tuple(counts[i] for i in places)
        data = [s.member.train for s in seats]
        if level:
            rows = torch.stack([d.rows for d in data])
            labels = torch.stack([d.labels for d in data])
        else:
            rows = pad_sequence([d.rows for d in data], True)
            labels = pad_sequence([d.labels for d in data], True)
        weights = None
        like = next((d.weight for d in data if d.weight is not None), None)
        if like is not None:
            own = [like.new_ones(len(d)) if d.weight is None else d.weight for d in data]
            weights = pad_sequence(own, True)
        even = level and not capped
        return cls(tuple(orders), tuple(seats), places, rows, labels, weights, counts, even)

    def part(self, begin: int, end: int) -> Chunk:
        """Clients ``begin..end`` as views; what an epoch draws is drawn once for all parts."""
        if (begin, end) == (0, len(self.seats)):
            return self
        weights = None if self.weights is None else self.weights[begin:end]
        places = tuple(p - begin for p in self.places[begin:end])
        return Chunk(
            self.orders,
            self.seats[begin:end],
            places,
            self.rows[begin:end],
            self.labels[begin:end],
            weights,
            self.counts[begin:end],
            self.even,
            self,
            begin,
        )

    def some(self, keep: Sequence[int]) -> Chunk:
        """These clients, who stay in running order; their rows are as long as before."""
        index, seats = torch.tensor(keep), tuple([self.seats[i] for i in keep])
        counts = tuple([self.counts[i] for i in keep])
        level = min(counts) == max(counts)
        return Chunk(
            self.orders,
            seats,
            tuple(range(len(keep))),
            self.rows.index_select(0, index),
            self.labels.index_select(0, index),
            None if self.weights is None else self.weights.index_select(0, index),
            counts,
            level and all([seat.member.steps is None for seat in seats]),
        )

    @property
    def order(self) -> Order:
        """What all orders of the chunk have in common can be read from the first."""
        return self.orders[0]

    @property
    def pool_x(self) -> Tensor:
        return self.seats[0].member.train.pool.x

    def given(self) -> Given:
        """Memories stacked over clients; what all clients share is not."""
        return given_to(self.orders, self.seats)

    def local(self) -> Local:
        """All data of every client, padded, as far as the method asks to see it."""
        program, unequal = self.order.program, self.order.pad > 0
        train = validation = None
        if program.needs_train:
            train = stacked_whole([s.member.train for s in self.seats], unequal=unequal)
        if program.needs_validation:
            held = [s.member.validation or s.member.train for s in self.seats]
            validation = stacked_whole(held, unequal=unequal)
        return Local(train, validation)

    def steps(self, done: Sequence[int]) -> list[int]:
        """How many steps each client takes in the next epoch."""
        if self.even:
            return [steps_an_epoch(self.order, self.counts[0])] * len(self.seats)
        out = []
        for seat, rows, before in zip(self.seats, self.counts, done, strict=True):
            left, cap = steps_an_epoch(self.order, rows), seat.member.steps
            out.append(left if cap is None else max(0, min(left, cap - before)))
        return out

    def regular(self, steps: Sequence[int]) -> int:
        """Leading steps in which every client takes a full batch of the same length."""
        if self.even:
            return min(steps[0], self.counts[0] // batch_rows(self.order, self.counts[0]))
        full = {batch_rows(self.order, rows) for rows in self.counts}
        if len(full) > 1:
            return 0
        return min(min(s, rows // min(full)) for s, rows in zip(steps, self.counts, strict=True))

    def stretches(self, first: int, steps: Sequence[int]) -> Iterator[tuple[int, int, list[Piece]]]:
        """From step ``first`` on: a step, how many in a row are taken by the same clients with the
        same kinds of batches, and those."""
        # padded batches are all of one kind, so a stretch lasts until somebody is done
        ends = sorted({s for s in steps if s > first}) if self.order.pad else None
        for end in ends or range(first + 1, max(steps) + 1):
            yield first, end - first, list(self.pieces(first, steps))
            first = end

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
        if step >= steps[i]:
            return None
        full = batch_rows(self.order, self.counts[i])
        real = min(full, self.counts[i] - step * full)
        return (full, True) if self.order.pad else (real, False)

    # ---- what is drawn ----
    def epoch(self, epoch: int) -> Epoch:
        """The rows and labels of this epoch in their drawn order."""
        if self.whole is None:
            rows, labels, weights = self.shuffled(epoch)
        else:
            span = slice(self.begin, self.begin + len(self.seats))
            tensors = self.whole.drawn.of(epoch, self.whole.shuffled)
            rows, labels, weights = tree.apply(lambda leaf: leaf[span], tensors)
        return Epoch(self.order, self.pool_x, self.counts, rows, labels, weights)

    def shuffled(self, epoch: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, labels and weights of all clients in the order of one epoch."""
        if not self.order.shuffle:
            return self.rows, self.labels, self.weights
        width = self._read()
        draw: Callable[[Order, list[int], list[int]], Tensor]
        draw = lambda order, clients, where: _widened(  # noqa: E731
            epoch_order(order, clients, [self.counts[i] for i in where], epoch, width), width
        )
        positions = self._by_owner(draw)
        index = positions.reshape(*positions.shape, *(1,) * (self.labels.dim() - 2))
        labels = self.labels.gather(1, index.expand(*positions.shape, *self.labels.shape[2:]))
        weights = None if self.weights is None else self.weights.gather(1, positions)
        return self.rows.gather(1, positions), labels, weights

    def _read(self) -> int:
        """How many rows a client takes in an epoch, at most."""
        most = 0
        for seat, count in zip(self.seats, self.counts, strict=True):
            cap = seat.member.steps
            most = max(
                most, count if cap is None else min(count, cap * batch_rows(self.order, count))
            )
        return most

    def noise(self, epoch: int, step: int, begin: int, end: int) -> tuple[Tree, ...]:
        """Every part's noise for clients ``begin..end``."""
        if len(self.orders) == 1:
            clients = [s.member.client for s in self.seats[begin:end]]
            return step_noise(self.order, clients, epoch, step)
        each = [
            step_noise(self.orders[s.owner], [s.member.client], epoch, step)
            for s in self.seats[begin:end]
        ]
        columns = zip(*map(tree.leaves, each), strict=True)
        joined: tuple[Tree, ...] = tree.rebuild(each[0], [torch.cat(c) for c in columns])
        return joined

    def _by_owner(self, draw: Callable[[Order, list[int], list[int]], Tensor]) -> Tensor:
        """``draw(order, clients, places)`` for every order, put together by client."""
        found, order_of_rows = [], list[int]()
        for number, order in enumerate(self.orders):
            where = [i for i, s in enumerate(self.seats) if s.owner == number]
            if where:
                found.append(draw(order, [self.seats[i].member.client for i in where], where))
                order_of_rows += where
        if len(found) == 1:
            return found[0]
        back = torch.empty(len(order_of_rows), dtype=torch.long)
        back[torch.tensor(order_of_rows)] = torch.arange(len(order_of_rows))
        return torch.cat(found).index_select(0, back)


def given_to(orders: Sequence[Order], seats: Sequence[Seat]) -> Given:
    """What clients hold fixed over a round: memories stacked, and what an order gives too if there
    are several."""
    order, theta = orders[0], orders[0].model.theta
    counts = known(tuple([s.member.train.count for s in seats]), theta.dtype)
    batches = None
    if order.program.counts_batches:
        numbers = [steps_an_epoch(orders[s.owner], len(s.member.train)) for s in seats]
        batches = known(tuple(map(float, numbers)), theta.dtype)
    memories: tuple[Tree, ...] = ((),) * len(order.program.method.parts)
    if order.program.keeps_memory:
        memories = tree.stack([_memories(orders[s.owner], s.member) for s in seats])
    if len(orders) == 1:
        shared = (theta, order.initial, order.model.stats, order.sent)
    else:
        shared = tree.stack([(o.model.theta, o.initial, o.model.stats, o.sent) for o in orders])
        owners = torch.tensor([s.owner for s in seats])
        shared = tree.apply(lambda leaf: leaf.index_select(0, owners), shared)
    received, initial, stats, sent = shared
    return Given(received, initial, stats, counts, memories, sent, batches)


def _widened(positions: Tensor, width: int) -> Tensor:
    """Clients of another order may have more rows."""
    return torch.nn.functional.pad(positions, (0, width - positions.shape[1]))


def _fewest_last(member: Member) -> tuple[int, int]:
    cap = member.steps if member.steps is not None else 2**40
    return (-cap, -len(member.train))


def _memories(order: Order, member: Member) -> tuple[Tree, ...]:
    """The member's memories; made anew only where something is missing."""
    kept = member.memories
    if kept is not None and all(own is not None for own in kept):
        return kept
    return order.given(member).memories
