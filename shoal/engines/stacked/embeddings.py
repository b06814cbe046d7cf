"""Large embeddings: a client trains the rows that its samples look up, and no others.

Its table is gathered from the model, its token numbers are renumbered, it trains the smaller
network, and its delta is added to the sum row by row. Exact where a coordinate without a gradient
stays as it was received (``Part.stays_put``): no weight decay, no pull towards anything but the
model received. A network says with ``looked_up`` that its samples are nothing but row numbers of
one table, 0 being padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Member, Order, Results
from shoal.engines.batches import batch_rows, epoch_order, steps_an_epoch
from shoal.engines.client_round import Program
from shoal.engines.sparse_rows import Scattered, Table
from shoal.engines.stacked.sizes import TABLE_ROWS, padded_size
from shoal.layout import Layout
from shoal.task import ModuleTask
from shoal.types import ClientData, Model, Pool

WORTH = 2**18  # numbers of a table that costs something to carry along
AT_ONCE = 2**25  # numbers in the vectors of the clients that are cut at one time

Train = Callable[[Sequence[Order]], Iterator[Results]]  # of orders of one program


@dataclass(frozen=True)
class Compact:
    """A program with a table, and the smaller programs that were made of it."""

    program: Program
    table: Table
    smaller: dict[int, Program] = field(default_factory=dict)

    def train(self, order: Order, train: Train) -> Iterator[Results]:
        """The order's results; ``train`` is told to train smaller orders."""
        for part in _parts(order):
            cuts = [_Cut.of(part, m, self.table) for m in part.members]
            rows = padded_size(max(len(cut.chosen) for cut in cuts), TABLE_ROWS)
            if 2 * rows > self.table.rows:
                yield from train([part])
                continue
            small = [cut.order(part, self._program(rows), rows) for cut in cuts]
            for cut, results in zip(cuts, train(small), strict=True):
                yield cut.back(results, order.model.theta.numel())

    def _program(self, rows: int) -> Program:
        if rows not in self.smaller:
            task = self.program.task
            assert isinstance(task, ModuleTask)
            shapes = [
                (rows, self.table.width) if name == task.looked_up else shape
                for name, shape in zip(task.layout.names, task.layout.shapes, strict=True)
            ]
            smaller = task.resized(Layout(task.layout.names, tuple(shapes)))
            self.smaller[rows] = replace(self.program, task=smaller)
        return self.smaller[rows]


@dataclass(frozen=True)
class _Cut:
    """One member, its samples renumbered."""

    member: Member
    table: Table
    chosen: Tensor

    @classmethod
    def of(cls, order: Order, member: Member, table: Table) -> _Cut:
        own = [member.train] + ([member.validation] if member.validation else [])
        samples = [d.pool.x.index_select(0, d.rows) for d in own]
        seen = torch.zeros(table.rows, dtype=torch.bool, device=samples[0].device)
        seen[0] = True  # padding stays number 0
        only = _positions(order, member)
        for x in samples if only is None else (samples[0][only], *samples[1:]):
            seen[x.reshape(-1)] = True
        number = seen.cumsum(0) - 1
        moved = [_renumbered(d, number[x]) for d, x in zip(own, samples, strict=True)]
        validation = moved[1] if member.validation else None
        small = replace(member, train=moved[0], validation=validation)
        return cls(small, table, seen.nonzero().squeeze(1))

    def order(self, order: Order, program: Program, rows: int) -> Order:
        """The order for this member alone, with a table of ``rows`` rows."""
        size = order.model.theta.numel()

        def narrow(leaf: Tensor) -> Tensor:
            whole = leaf.dim() == 1 and leaf.numel() == size
            return self.table.narrowed(leaf, self.chosen, rows) if whole else leaf

        model = Model(narrow(order.model.theta), order.model.stats)
        return replace(
            order,
            program=program,
            model=model,
            initial=narrow(order.initial),
            sent=tree.apply(narrow, order.sent),
            members=(self.member,),
            uniform=None,
            summed=False,
        )

    def back(self, results: Results, size: int) -> Results:
        assert isinstance(results.delta, Tensor)
        delta = Scattered(size, self.table, self.chosen, results.delta[0])
        return results._replace(delta=delta)


def compact_of(program: Program) -> tuple[Compact | None, str]:
    """How to train a program's table by the row; None, and why if that is worth saying."""
    task = program.task
    if not isinstance(task, ModuleTask) or task.looked_up is None:
        return None, ""
    rows, width = task.layout.shapes[task.layout.names.index(task.looked_up)]
    if rows * width < WORTH:
        return None, ""
    for part in (*program.method.parts, program.local_optimizer):
        if not part.stays_put:
            why = f"{part.describe()} moves rows that no sample looks up"
            return None, f"the whole of {task.looked_up} is trained by every client: {why}"
    begin = task.layout.slices[task.looked_up].start
    return Compact(program, Table(begin, rows, width)), ""


def _parts(order: Order) -> Iterator[Order]:
    """Consecutive members, few enough that copies of the model for all of them are no burden."""
    size = max(4, AT_ONCE // order.model.theta.numel())
    for first in range(0, len(order.members), size):
        yield replace(order, members=order.members[first : first + size])


def _positions(order: Order, member: Member) -> Tensor | None:
    """Where the samples stand that a member's steps will see; None: all of them do."""
    rows, cap = len(member.train), member.steps
    program = order.program
    if cap is None or cap >= steps_an_epoch(order, rows):
        return None
    if program.needs_train or program.counts_batches:
        return None
    drawn = epoch_order(order, [member.client], [rows], 0)[0]
    return drawn[: cap * batch_rows(order, rows)].to(member.train.rows.device)


def _renumbered(data: ClientData, x: Tensor) -> ClientData:
    return replace(data, pool=Pool(x, data.labels), rows=torch.arange(len(data), device=x.device))
