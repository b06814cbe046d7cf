"""A question put to many clients at once, recorded and replayed as their training is.

That takes a question which says so (``weighs_rows``): clients' rows are padded to one length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import Batch
from shoal.engines.api import Member, Order, known
from shoal.engines.client_round import Carry, ClientProgram, Given, WholeData
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.loop import Descend, asked_view, epoch_batches, question_view
from shoal.engines.stacked.compiled import Compiled, StepCall, given_axes, local_axes
from shoal.engines.stacked.layout import given_to, stacked_whole
from shoal.engines.stacked.plan import QUESTION_LENGTHS, padded_size
from shoal.methods.method import Method
from shoal.methods.parts.local_optimizers import Sgd
from shoal.methods.slots import Part


def answers_together(
    compiled: Compiled, order: Order, question: Callable[..., Tree], payload: Tree
) -> list[Tree] | None:
    """Everybody's answer; None where clients cannot be asked at once.

    Without padding in the order (it may change what rows give), there is none in questions.
    """
    if not (getattr(question, "weighs_rows", False) and compiled.stacked and order.members):
        return None
    groups: dict[int, list[int]] = {}  # places of members by the length they are padded to
    for place, member in enumerate(order.members):
        rows = len(member.train)
        length = padded_size(rows, QUESTION_LENGTHS) if order.pad else rows
        groups.setdefault(length, []).append(place)
    found: dict[int, Tree] = {}
    with torch.no_grad():
        for length, places in groups.items():
            members = [order.members[place] for place in places]
            try:
                answers = _answers(compiled, order, members, length, question, payload)
            except Untraceable:
                return None
            found |= zip(places, tree.unstack(answers), strict=False)
    return [found[place] for place in range(len(order.members))]


def _answers(
    compiled: Compiled,
    order: Order,
    members: Sequence[Member],
    length: int,
    question: Callable[..., Tree],
    payload: Tree,
) -> Tree:
    """A stack of answers; there may be more than members, since few sizes are recorded."""
    spare = (1 << (len(members) - 1).bit_length()) - len(members)
    stack = [*members, *[members[-1]] * spare]
    given = given_to(order, stack)
    length = length if order.pad else 0
    local = WholeData(stacked_whole([member.train for member in stack], length), None)
    rate = known(order.rates[0], given.received.dtype, given.received.device)

    def mapped(given: Given, payload: Tree, rate: Tensor, local: WholeData) -> Tree:
        def one(given: Given, local: WholeData) -> Tree:
            return question(asked_view(order, given, local, rate, question), payload)

        return vmap(one, in_dims=(given_axes(given), local_axes(local)))(given, local)

    return compiled.run(question, mapped, (given, payload, rate, local), order.clock(0))


class Asker:
    """The plain step of one program's task, traced for the batches that come."""

    def __init__(self, program: ClientProgram) -> None:
        plain = ClientProgram(Method("plain", ()), program.task, Sgd())
        self._compiled = Compiled(plain, stacked=False)
        self._stacked = Compiled(program, program.task.stackable)
        self._task = program.task
        self._walking: ClientProgram | None = None

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
        method, optimizer = Method("walk", (part(),)), order.program.local_optimizer
        if not getattr(question, "trained_as_the_run", False):
            optimizer = Sgd(weight_decay=order.program.weight_decay)
        if self._walking is None or self._walking.method != method:
            self._walking = ClientProgram(method, self._task, optimizer)
        members = tuple(m._replace(memories=None, steps=None) for m in order.members)
        rates = tuple(float(rate) for rate in payload)
        return replace(
            order, program=self._walking, members=members, rates=rates, sent=((),), summed=False
        )

    def _descend(self, order: Order, member: Member) -> Descend:
        def descend(x: Tensor, rate: float, epoch: int, decayed: bool) -> Tensor:
            decay = order.program.weight_decay if decayed else 0.0
            # Not in inference mode: the question may differentiate at the point it is given.
            with torch.no_grad():
                vector = x.detach().clone()
                bound: dict[tuple[object, ...], Callable[..., object]] = {}
                for batch in epoch_batches(order, member.client, member.train, epoch):
                    shape = (batch.x.shape, batch.weight is None)
                    if shape not in bound:
                        bound[shape] = self._bound(order, vector, batch, rate)
                    shrunk = vector * (rate * decay) if decay else None
                    bound[shape]([t for t in batch if t is not None], rate)
                    if shrunk is not None:
                        vector -= shrunk
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
        call = StepCall(given, stats.new_zeros(0), carry, rows, number, order.clock(0))
        replay, bound = self._compiled.step(call, lambda: rows)
        return replay.bind(*bound)
