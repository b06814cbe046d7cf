"""Large embeddings: a client trains the rows that its samples look up, and no others.

Its table is gathered from the model, its token numbers are renumbered, it trains the smaller
network, and its delta is added to the sum row by row. Exact where a coordinate without a gradient
stays as it was received (``Part.leaves_zero_gradients_alone``): no weight decay, no pull towards
anything but the model received. And exact where samples are nothing but row numbers of one table,
which the network is watched for: once, on two rows, before a program's first order. Number 0 stays
number 0, since it is what texts are padded with: a network may leave it out of sums (``x != 0``),
or give it no gradient (``padding_idx=0``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from shoal.core import tree
from shoal.core.layout import Layout
from shoal.core.task import ModuleTask
from shoal.core.types import Batch, ClientData, Model, Pool
from shoal.engines.api import EmbeddingSpan, Member, Order, Results, Scattered
from shoal.engines.client_round import ClientProgram
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.compile import graph_of
from shoal.engines.compiler.graph import dtype, is_view, op_name
from shoal.engines.loop import batch_rows, epoch_order, steps_an_epoch
from shoal.engines.stacked.plan import TABLE_ROWS, padded_size

WORTH = 2**18  # numbers of a table that costs something to carry along
AT_ONCE = 2**25  # numbers in the vectors of the clients that are cut at one time

Train = Callable[[Sequence[Order]], Iterator[Results]]  # of orders of one program


@dataclass(frozen=True)
class Compact:
    """A program with a table, and the smaller programs that were made of it."""

    program: ClientProgram
    name: str
    table: EmbeddingSpan
    smaller: dict[int, ClientProgram] = field(default_factory=dict)

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

    def _program(self, rows: int) -> ClientProgram:
        if rows not in self.smaller:
            task = self.program.task
            assert isinstance(task, ModuleTask)
            shapes = [
                (rows, self.table.width) if name == self.name else shape
                for name, shape in zip(task.layout.names, task.layout.shapes, strict=True)
            ]
            smaller = task.resized(Layout(task.layout.names, tuple(shapes)))
            self.smaller[rows] = replace(self.program, task=smaller)
        return self.smaller[rows]


@dataclass(frozen=True)
class _Cut:
    """One member, its samples renumbered."""

    member: Member
    table: EmbeddingSpan
    chosen: Tensor

    @classmethod
    def of(cls, order: Order, member: Member, table: EmbeddingSpan) -> _Cut:
        own = [member.train] + ([member.validation] if member.validation else [])
        samples = [d.pool.x.index_select(0, d.rows) for d in own]
        seen = torch.zeros(table.rows, dtype=torch.bool, device=samples[0].device)
        seen[0] = True  # padding stays number 0
        only = _positions(order, member)
        for x in samples if only is None else (samples[0][only], *samples[1:]):
            seen.index_fill_(0, x.reshape(-1), True)
        number = seen.cumsum(0) - 1
        moved = [
            _renumbered(d, number.index_select(0, x.reshape(-1)).view_as(x))
            for d, x in zip(own, samples, strict=True)
        ]
        validation = moved[1] if member.validation else None
        small = member._replace(train=moved[0], validation=validation)
        return cls(small, table, seen.nonzero().squeeze(1))

    def order(self, order: Order, program: ClientProgram, rows: int) -> Order:
        """The order for this member alone, with a table of ``rows`` rows."""
        size = order.model.theta.numel()

        def narrow(leaf: Tensor) -> Tensor:
            whole = leaf.dim() == 1 and leaf.numel() == size
            return self.table.narrowed(leaf, self.chosen, rows) if whole else leaf

        model = Model(narrow(order.model.theta), order.model.stats)
        first = narrow(order.initial) if _reads_first(program) else model.theta
        return replace(
            order,
            program=program,
            model=model,
            initial=first,
            sent=tree.apply(narrow, order.sent),
            members=(self.member,),
            uniform=None,
            summed=False,
        )

    def back(self, results: Results, size: int) -> Results:
        assert isinstance(results.delta, Tensor)
        delta = Scattered(size, self.table, self.chosen, results.delta[0])
        return results._replace(delta=delta)


def compact_of(order: Order) -> tuple[Compact | None, str]:
    """How to train a program's table by the row; None, and why if that is worth saying."""
    program, task = order.program, order.program.task
    large = any(len(s) == 2 and s[0] * s[1] >= WORTH for s in task.layout.shapes)
    if not large or not isinstance(task, ModuleTask):
        return None, ""
    name = _looked_up(task, order)
    rows, width = task.layout.shapes[task.layout.names.index(name)] if name else (0, 0)
    if not name or rows * width < WORTH:
        return None, ""
    for part in (*program.method.parts, program.local_optimizer):
        if not part.leaves_zero_gradients_alone:
            why = f"{part.describe()} moves rows that no sample looks up"
            return None, f"the whole of {name} is trained by every client: {why}"
    return Compact(program, name, EmbeddingSpan(task.layout.slices[name].start, rows, width)), ""


def _looked_up(task: ModuleTask, order: Order) -> str:
    """The parameter that samples are row numbers of and that has no other use; "" if none is."""
    pool = order.members[0].train.pool
    batch, stats = Batch(pool.x[:2], pool.y[:2]), order.model.stats
    if batch.x.is_floating_point():
        return ""

    def forward(theta: Tensor, x: Tensor) -> list[Tensor]:
        outputs = task.forward(theta, batch._replace(x=x), stats, True)
        return [outputs.logits, outputs.features]

    try:
        graph = graph_of(forward, [order.model.theta, batch.x])
    except Untraceable:
        return ""
    theta, x = graph.fixed
    lookups = [(node, used) for node, used in _uses(x) if not _tells_padding(node)]
    tables = {_block(node.args[0], theta) for node, used in lookups if _looks_up(node, used)}
    if len(tables) != 1 or not all(_looks_up(*lookup) for lookup in lookups):
        return ""
    (block,) = tables
    nodes = {node for node, _ in lookups}
    if block is None or any(n not in nodes or n.args.count(w) > 1 for n, w in _uses(block)):
        return ""
    return task.layout.names[block.args[1]]  # type: ignore[index]


# Operators that look up rows of a table (first argument) by number (second), and where they are
# told which number is padding that gets no gradient.
_LOOKUPS = {"embedding": 2, "_embedding_bag": 8, "_embedding_bag_forward_only": 8}


def _looks_up(node: Node, numbers: Node) -> bool:
    place = _LOOKUPS.get(op_name(node))
    if place is None or node.args[1] is not numbers or node.args.count(numbers) > 1:
        return False
    return len(node.args) <= place or node.args[place] in (-1, 0)


def _tells_padding(node: Node) -> bool:
    """``x != 0`` and the like, of numbers that are not negative."""
    return op_name(node) in ("ne", "eq", "gt") and node.args[1:] == (0,)


def _uses(node: Node) -> Iterator[tuple[Node, Node]]:
    """Who reads a tensor, through views and copies, and as what."""
    for user in node.users:
        whole = dtype(user) in (torch.int32, torch.int64) if op_name(user) == "_to_copy" else False
        if is_view(user) or whole or op_name(user) in ("clone", "detach", "alias"):
            yield from _uses(user)
        else:
            yield user, node


def _block(table: Any, theta: Node) -> Node | None:
    """The parameter, cut from the vector, that a table is a view of."""
    while isinstance(table, Node) and op_name(table) in ("view", "detach", "alias"):
        table = table.args[0]
    cut = isinstance(table, Node) and table.target is operator.getitem
    return table if cut and table.args[0].args[0] is theta else None


def at_once(order: Order) -> int:
    """Consecutive members whose tables are cut at one time, and to one size."""
    return max(4, AT_ONCE // order.model.theta.numel())


def _parts(order: Order) -> Iterator[Order]:
    """Consecutive members, few enough that copies of the model for all of them are no burden."""
    size = at_once(order)
    for first in range(0, len(order.members), size):
        yield replace(order, members=order.members[first : first + size])


def _reads_first(program: ClientProgram) -> bool:
    """Whether anything may look at the model of the first round: plain training does not."""
    plain = type(program.local_optimizer).__module__.startswith("shoal.")
    return bool(program.method.parts) or not plain


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
