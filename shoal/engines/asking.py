"""Questions to clients, with the gradient steps inside them traced and replayed.

A question is Python of its own and is put to one client after another; what it costs is the plain
SGD it tries on the client's batches (``view.descend``), and that is the same step for everybody.
A question that is local training itself (``part.trains``) is answered by all clients at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.asking_together import answers_together
from shoal.engines.base import Member, Order
from shoal.engines.batches import epoch_batches
from shoal.engines.compiled import Compiled
from shoal.engines.loop import Descend, question_view
from shoal.local import Carry, Given, Program
from shoal.method import Method
from shoal.part import Part
from shoal.parts.local_sgd import Sgd
from shoal.tree import Tree
from shoal.types import Batch


class Asker:
    """The plain step of one program's task, traced for the batches that come."""

    def __init__(self, program: Program) -> None:
        plain = Program(Method("plain", ()), program.task, Sgd())
        self._compiled = Compiled(plain, stacked=False)
        self._stacked = Compiled(program, program.task.stackable)
        self._task = program.task
        self._walking: Program | None = None

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        """Everybody's answer; raises Untraceable."""
        found = answers_together(self._stacked, order, question, payload)
        return found or [
            question(question_view(order, m, question, self._descend(order, m)), payload)
            for m in order.members
        ]

    def walk(self, order: Order, question: Callable[..., Tree], payload: Tree) -> Order | None:
        """The order whose uploads are the answers; None if the question is no training."""
        part: Callable[..., Part] | None = getattr(question, "trained_by", None)
        if part is None:
            return None
        optimizer: Part = order.program.local_optimizer
        if getattr(question, "trained_as_the_run", False):
            method = Method("walk", (part(),))
        else:
            decay = float(getattr(optimizer, "weight_decay", 0.0))
            method, optimizer = Method("walk", (part(decay=decay),)), Sgd()
        if self._walking is None or self._walking.method != method:
            self._walking = Program(method, self._task, optimizer)
        members = tuple(replace(m, memories=None, steps=None) for m in order.members)
        rates = tuple(float(rate) for rate in payload)
        return replace(
            order, program=self._walking, members=members, rates=rates, sent=((),), summed=False
        )

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
