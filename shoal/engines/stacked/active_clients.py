"""The clients of a chunk that still train, and what those who are done send and keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Results
from shoal.engines.batches import rows_taken
from shoal.engines.client_round import Given, Local
from shoal.engines.numbers import known
from shoal.engines.stacked.compiled import Compiled, rows_of
from shoal.engines.stacked.layout import Chunk
from shoal.engines.stacked.plan import SMALL_STEP, step_work
from shoal.engines.stacked.sizes import filled, rows_for, stack_sizes
from shoal.tree import Tree
from shoal.types import Work


class Done(NamedTuple):
    """Results of some clients, and where each was in the chunk."""

    places: list[int]
    results: Results


def _sizes_for(compiled: Compiled, chunk: Chunk) -> tuple[int, ...]:
    """Rows that the chunk's stacks may have, the most last; () where they are exactly its clients.

    A large step is worth more than a compilation, and equal clients seldom need another one.
    """
    spare = compiled.stacked and chunk.order.pad > 0 and not compiled.program.noisy
    # a batch with merged rows is of another kind than the others
    spare = spare and chunk.order.last_batch != "merge"
    work = step_work(chunk.order) * len(chunk.members)
    if not spare or chunk.even or work >= SMALL_STEP:
        return ()
    return stack_sizes(len(chunk.members), spare=True)


class Active:
    """Clients of a chunk that have not stopped, and what they did so far.

    Tensors may have spare rows behind those of the clients.
    """

    def __init__(self, compiled: Compiled, chunk: Chunk, rate: Tensor) -> None:
        self.chunk, self.largest = chunk, len(chunk.members)
        self.sizes = _sizes_for(compiled, chunk)
        self.where = list(range(self.largest))  # in the chunk as it began
        self.given: Given = chunk.given()
        self.local: Local = chunk.local()
        if rows_for(self.largest, self.sizes) > self.largest:
            rows = rows_for(self.largest, self.sizes)
            self._pick_given(filled(self.where, rows, self.given.n.device))
        clock = chunk.order.clock(0)
        self.start, self.carry = compiled.start(self.given, rate, self.local, clock)
        self.steps, self.samples = [0] * self.largest, [0] * self.largest
        self.rate_total = [0.0] * self.largest

    @property
    def rows(self) -> int:
        """Of the tensors."""
        return self.carry.x.shape[0]

    def count(self, steps: list[int], rate: float) -> None:
        """Write down an epoch's steps at a rate."""
        chunk = self.chunk
        if chunk.even:  # everybody took the same steps, so far, too
            taken = rows_taken(chunk.order, chunk.counts[0], steps[0])
            self.samples = [self.samples[0] + taken] * len(steps)
            self.steps = [self.steps[0] + steps[0]] * len(steps)
            self.rate_total = [self.rate_total[0] + steps[0] * rate] * len(steps)
            return
        seen = map(partial(rows_taken, chunk.order), chunk.counts, steps)
        self.samples = list(map(add, self.samples, seen))
        self.steps = list(map(add, self.steps, steps))
        self.rate_total = [
            total + taken * rate for total, taken in zip(self.rate_total, steps, strict=True)
        ]

    def select(self, keep: list[int]) -> None:
        """Go on with these clients only."""
        index = filled(keep, rows_for(len(keep), self.sizes), self.carry.x.device)
        self.chunk = self.chunk.some(keep)
        self._pick_given(index)
        self.start = _picked(self.start, index) if self.start.dim() == 2 else self.start
        self.carry = _picked(self.carry, index)
        self.where = [self.where[i] for i in keep]
        self.steps = [self.steps[i] for i in keep]
        self.samples = [self.samples[i] for i in keep]
        self.rate_total = [self.rate_total[i] for i in keep]

    def _pick_given(self, index: Tensor) -> None:
        """Rows of what is held fixed over the round."""
        given = self.given
        self.given = given._replace(
            n=_picked(given.n, index),
            memories=_picked(given.memories, index),
            batches=_picked(given.batches, index),
        )
        self.local = Local(*(None if b is None else _picked(b, index) for b in self.local))


def _picked(value: Tree, index: Tensor) -> Tree:
    return tree.apply(lambda leaf: leaf.index_select(0, index), value)


def finish(compiled: Compiled, active: Active, over: list[int], epoch: int, rate: Tensor) -> Done:
    """What the clients that are done send and keep."""
    done = active
    if len(over) < len(active.where):
        done = copy(active)
        done.select(over)
    clock = active.chunk.order.clock(epoch)
    work = _work(compiled, done, epoch)
    ended = compiled.end(done.given, done.start, done.carry, work, rate, done.local, clock)
    members = done.chunk.members
    if done.rows > len(members):
        ended = rows_of(ended, 0, len(members))
    norms = torch.linalg.vector_norm(ended.delta, dim=1).tolist()
    results = Results(
        tuple([m.client for m in members]),
        tuple([m.train.count for m in members]),
        ended.delta,
        ended.stats,
        ended.payloads,
        ended.memories,
        tuple(done.steps),
        tuple(done.samples),
        (epoch + 1,) * len(members),
        tuple(norms),
    )
    return Done(done.where, results)


def _work(compiled: Compiled, done: Active, epoch: int) -> Work | None:
    """The measured work, where something asks for it."""
    if compiled.plain_end:
        return None
    like, spare = done.carry.x, done.rows - len(done.steps)
    number: Callable[[Sequence[float]], Tensor]
    number = lambda v: known((*v, *[v[-1]] * spare), like.dtype, like.device)  # noqa: E731
    rated = bool(compiled.program.fillers("rate"))
    total = done.carry.rate_sum if rated else number(done.rate_total)
    epochs = number([epoch + 1] * len(done.steps))
    return Work(number(done.steps), number(done.samples), epochs, total)


def in_order(chunk: Chunk, finished: list[Done]) -> Results:
    """One result, the clients as they came."""
    if len(finished) == 1 and chunk.even:
        return finished[0].results  # they ran as they came
    asked = [0] * len(chunk.members)  # where the client that came i-th was when it ran
    for ran, came in enumerate(chunk.places):
        asked[came] = ran
    found = {ran: k for k, ran in enumerate(w for d in finished for w in d.places)}
    rows = [found[ran] for ran in asked]
    return joined([d.results for d in finished], rows)


def joined(finished: list[Results], rows: list[int]) -> Results:
    """One result with the clients in the given order."""
    size = sum(len(f.clients) for f in finished)
    if len(finished) == 1 and rows == list(range(size)):
        return finished[0]
    index = torch.tensor(rows, device=finished[0].stats.device)
    columns: list[Any] = []
    for column in zip(*finished, strict=True):
        plain = column[0] is None or isinstance(column[0], bool)
        if plain or (isinstance(column[0], tuple) and not tree.leaves(column[0])):
            columns.append(column[0])
        elif isinstance(column[0], tuple) and not isinstance(tree.leaves(column[0])[0], Tensor):
            flat = [value for group in column for value in group]
            columns.append(tuple(flat[r] for r in rows))
        else:
            pairs = zip(*(tree.leaves(c) for c in column), strict=True)
            joined = [torch.cat(leaves).index_select(0, index) for leaves in pairs]
            columns.append(tree.rebuild(column[0], joined))
    return Results(*columns)
