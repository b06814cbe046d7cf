"""The reference engine: one client after another, one step after another, nothing clever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Member, Order, Results
from shoal.engines.batches import epoch_batches, step_noise, steps_an_epoch, whole
from shoal.engines.client_round import Carry, Given, Local, Program
from shoal.method import Method
from shoal.tree import Tree
from shoal.types import Work
from shoal.view import View

# a vector, a rate, the number of the epoch, whether weights decay
Descend = Callable[[Tensor, float, int, bool], Tensor]


class Loop:
    """Readable first: what the other engines are compared with."""

    name = "loop"

    def train(self, order: Order) -> Iterator[Results]:
        for member in order.members:
            yield train_one(order, member)

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return [question(question_view(order, m, question), payload) for m in order.members]

    def close(self) -> None:
        pass


def local_data(program: Program, member: Member, always: bool = False) -> Local:
    """The member's data as whole batches, as far as the method asks to see them."""
    train = whole(member.train) if always or program.needs_train else None
    validation = None
    if always or program.needs_validation:
        validation = whole(member.validation or member.train)
    return Local(train, validation, None if train is None else member.train.rows)


def train_one(order: Order, member: Member) -> Results:
    """One client's round."""
    program, given = order.program, order.given(member)
    if program.counts_batches:
        count = steps_an_epoch(order, len(member.train))
        given = given._replace(batches=_scalar(count, given.received))
    local = local_data(program, member)
    steps = samples = epochs = 0
    rate_total = 0.0
    start: Tensor | None = None
    carry: Carry | None = None
    for epoch, rate_value in enumerate(order.rates):
        clock, rate = order.clock(epoch), _scalar(rate_value, given.received)
        if carry is None or start is None:
            start, carry = program.start(given, rate, local, clock)
        for index, batch in enumerate(epoch_batches(order, member.client, member.train, epoch)):
            if member.steps is not None and steps >= member.steps:
                break
            noise = tree.row(step_noise(order, [member.client], epoch, index), 0)
            carry = program.step(given, start, carry, batch, rate, noise, clock)
            steps += 1
            samples += batch.x.shape[0] if batch.weight is None else int((batch.weight > 0).sum())
            rate_total += rate_value
        epochs += 1
        carry, stop = program.epoch_end(given, start, carry, rate, local, clock)
        if bool(stop) or (member.steps is not None and steps >= member.steps):
            break
    assert carry is not None and start is not None, "an order has at least one epoch"
    work = work_done(steps, samples, epochs, rate_total, carry, program)
    ended = program.end(given, start, carry, work, rate, local, order.clock(epochs - 1))
    row: Callable[[Tensor], Tensor] = lambda leaf: leaf.detach().unsqueeze(0)  # noqa: E731
    return Results(
        (member.client,),
        (member.train.count,),
        row(ended.delta),
        row(ended.stats),
        tree.apply(row, ended.payloads),
        tree.apply(row, ended.memories),
        (steps,),
        (samples,),
        (epochs,),
    )


def work_done(
    steps: int, samples: int, epochs: int, rate_total: float, carry: Carry, program: Program
) -> Work:
    """The measured work, as 0-d tensors of the model's type."""
    like = carry.x
    total = carry.rate_sum if program.fillers("rate") else _scalar(rate_total, like)
    return Work(_scalar(steps, like), _scalar(samples, like), _scalar(epochs, like), total)


def question_view(
    order: Order, member: Member, question: Callable[..., Tree], descend: Descend | None = None
) -> View:
    """A view for a question: the part's own states, all data, and plain SGD to try things with.

    An engine may bring a faster ``descend`` of its own.
    """
    program, given = order.program, order.given(member)
    local, stats = local_data(program, member, always=True), given.stats
    rate = _scalar(order.rates[0], given.received)

    def plain(x: Tensor, rate_value: float, epoch: int, decayed: bool) -> Tensor:
        decay = program.weight_decay if decayed else 0.0
        for batch in epoch_batches(order, member.client, member.train, epoch):
            gradient = program._plain_gradient(batch, stats)(x)
            x = x - rate_value * (gradient + decay * x if decay else gradient)
        return x

    def train(x: Tensor, rates: Sequence[float], epoch: int) -> Tensor:
        return torch.stack(trained(order, member, x, rates, epoch))

    view = asked_view(order, given, local, rate, question)
    return replace(view, descend_with=descend or plain, train_with=train)


def trained(
    order: Order, member: Member, x: Tensor, rates: Sequence[float], first: int
) -> list[Tensor]:
    """``x``, and the model after each epoch of the run's own local optimiser, from epoch ``first``
    on, without the method."""
    program = Program(Method("plain", ()), order.program.task, order.program.local_optimizer)
    given = order.given(member)._replace(received=x, memories=(), sent=())
    points, carry = [x], None
    for epoch, value in enumerate(rates, first):
        clock, rate = order.clock(epoch), _scalar(value, x)
        if carry is None:
            _, carry = program.start(given, rate, Local(), clock)
        for batch in epoch_batches(order, member.client, member.train, epoch):
            carry = program.step(given, x, carry, batch, rate, (), clock)
        points.append(carry.x)
    return points


def asked_view(
    order: Order, given: Given, local: Local, rate: Tensor, question: Callable[..., Tree]
) -> View:
    """The view of a client with these tensors for a question of the program's, without descent."""
    program, theta = order.program, given.received
    part = getattr(question, "__self__", None)
    index = program.method.index(part) if part is not None else 0
    view = program._view(given, theta, theta, given.stats, rate, order.clock(0), local)
    return program._own(view, given, None, index)


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=like.dtype, device=like.device)
