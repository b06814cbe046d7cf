"""Questions to clients, with the gradient steps inside them traced and replayed.

A question is Python of its own and is put to one client after another; what it costs is the plain
SGD it tries on the client's batches (``view.descend``), and that is the same step for everybody.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.base import Member, Order
from shoal.engines.batches import epoch_batches
from shoal.engines.compiled import Compiled
from shoal.engines.loop import Descend, question_view
from shoal.local import Carry, Given, Program
from shoal.method import Method
from shoal.parts.local_sgd import Sgd
from shoal.tree import Tree
from shoal.types import Batch


class Asker:
    """The plain step of one program's task, traced for the batches that come."""

    def __init__(self, program: Program) -> None:
        plain = Program(Method("plain", ()), program.task, Sgd())
        self._compiled = Compiled(plain, stacked=False)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        """Everybody's answer; raises Untraceable."""
        return [
            question(question_view(order, m, question, self._descend(order, m)), payload)
            for m in order.members
        ]

    def _descend(self, order: Order, member: Member) -> Descend:
        def descend(x: Tensor, rate: float, epoch: int) -> Tensor:
            # Not in inference mode: the question may differentiate at the point it is given.
            with torch.no_grad():
                vector = x.detach().clone()
                bound: dict[tuple[int, ...], Callable[..., object]] = {}
                for batch in epoch_batches(order, member.client, member.train, epoch):
                    shape = tuple(batch.x.shape)
                    if shape not in bound:
                        bound[shape] = self._bound(order, vector, batch, rate)
                    bound[shape]([t for t in batch if t is not None], rate)
            return vector

        return descend

    def _bound(
        self, order: Order, vector: Tensor, batch: Batch, rate: float
    ) -> Callable[..., object]:
        """The step on this vector; the client axis is there for the tracer's sake only."""
        stats = order.model.stats
        x, number = vector.unsqueeze(0), vector.new_tensor(rate)
        given = Given(vector, order.initial, stats, vector.new_ones(1), (), ())
        carry = Carry(x, stats.clone().unsqueeze(0), (), (), vector.new_zeros(1))
        rows: Batch = tree.apply(lambda leaf: leaf.unsqueeze(0), batch)
        replay, flat, fixed = self._compiled.step(
            given, stats.new_zeros(0), carry, rows, number, (), order.clock(0), lambda: rows
        )
        return replay.bind(flat, fixed)
