"""What a batch is, and the reference: one client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shoal.core import rng, tree
from shoal.core.layers.drawing import step_keys
from shoal.core.tree import Tree
from shoal.core.types import Batch, ClientData, Work
from shoal.engines.api import Member, Order, Results
from shoal.engines.client_round import Carry, ClientProgram, Given, WholeData, plain_gradient
from shoal.methods.method import Method
from shoal.methods.view import View

# ---- batches -------------------------------------------------------------------------------------
# Batches of one client: the same on every engine, from keys alone.


def batch_rows(order: Order, rows: int) -> int:
    """How many rows a full batch has for a client with ``rows`` rows."""
    if order.batch is None:
        return max(rows, order.pad)
    if order.pad == 0:
        return min(order.batch, rows)
    return order.batch


def steps_an_epoch(order: Order, rows: int) -> int:
    """Of a client with so many rows; its only batch is never dropped."""
    size = batch_rows(order, rows)
    return -(-rows // size) if order.last_batch == "keep" else max(1, rows // size)


def rows_taken(order: Order, rows: int, steps: int) -> int:
    """How many of its rows a client takes in the first so many steps of an epoch."""
    if order.last_batch == "merge" and steps >= steps_an_epoch(order, rows):
        return rows
    return min(rows, steps * batch_rows(order, rows))


def rows_an_epoch(order: Order, rows: int) -> int:
    """How many of its rows a client takes in an epoch: all, but for those of a dropped batch."""
    return rows_taken(order, rows, steps_an_epoch(order, rows))


def step_rows(order: Order, rows: int, step: int) -> int:
    """How many rows a client takes in one step of an epoch."""
    return rows_taken(order, rows, step + 1) - rows_taken(order, rows, step)


def runs_of_steps(order: Order, rows: int) -> list[tuple[int, int]]:
    """The steps of an epoch without padding: how many, of so many rows each."""
    size, steps = batch_rows(order, rows), steps_an_epoch(order, rows)
    last = step_rows(order, rows, steps - 1)
    if last == size:
        return [(steps, size)]
    return [(steps - 1, size), (1, last)] if steps > 1 else [(1, last)]


def padded_rows(order: Order, rows: int, step: int) -> int:
    """The length of that batch with padding: that of a full batch, or of the longest that merging
    can make, so that there are few of them."""
    size = batch_rows(order, rows)
    if step_rows(order, rows, step) <= size:
        return size
    return min(2 * size - 1, max(order.pad, rows))


def epoch_order(
    order: Order, clients: list[int], counts: list[int], epoch: int, most: int | None = None
) -> torch.Tensor:
    """``[C, max rows]`` positions of each client's rows in the order of this epoch; with ``most``,
    no more than so many of them."""
    sizes = np.asarray(counts, dtype=np.int64)
    if not order.shuffle:
        return torch.arange(int(sizes.max()))[:most].expand(len(counts), -1)
    key = rng.keys(order.seed, rng.Purpose.ORDER, order.round, clients, epoch)
    return torch.from_numpy(rng.permutations(key, sizes, most))


def padded_batch(data: ClientData, positions: torch.Tensor, length: int) -> Batch:
    """The rows at ``positions``; padding (weight 0) up to ``length`` repeats the first row.

    A full batch has no weights: it is trained as torch would train it.
    """
    real = positions.shape[0]
    weight = None
    if real < length:
        filler = positions.new_zeros(length - real)
        positions = torch.cat([positions, filler])
    x = data.pool.x.index_select(0, data.rows[positions])
    if real < length or data.weight is not None:
        weight = torch.ones(length, dtype=number_type(x), device=x.device)
        weight[real:] = 0.0
        if data.weight is not None:
            weight = weight * data.weight[positions]
    return Batch(x, data.labels[positions], weight)


def epoch_batches(order: Order, client: int, data: ClientData, epoch: int) -> Iterator[Batch]:
    """The client's batches of one epoch; a ragged last one is padded to the run-wide length."""
    rows = len(data)
    positions = epoch_order(order, [client], [rows], epoch)[0, :rows].to(data.rows.device)
    for step in range(steps_an_epoch(order, rows)):
        begin, end = (rows_taken(order, rows, s) for s in (step, step + 1))
        length = padded_rows(order, rows, step) if order.pad else end - begin
        batch = padded_batch(data, positions[begin:end], length)
        if order.program.draws:
            key = step_keys(order.seed, order.round, [client], epoch, [step])[0, 0]
            batch = batch._replace(key=key.to(batch.x.device))
        yield batch


def whole(data: ClientData) -> Batch:
    """All rows of a client as one batch."""
    x = data.pool.x.index_select(0, data.rows)
    weight = None if data.weight is None else data.weight.to(number_type(x))
    return Batch(x, data.labels, weight)


def step_noise(order: Order, clients: list[int], epoch: int, step: int) -> tuple[Tree, ...]:
    """``[C, ...]`` standard normal numbers for every part that declares shapes."""
    program, size = order.program, order.batch or 0
    out: list[Tree] = []
    for index, part in enumerate(program.method.parts):
        shapes = part.noise_shapes(program.task, size)
        drawn = []
        for which, shape in enumerate(shapes):
            key = rng.keys(
                order.seed, rng.Purpose.NOISE, order.round, clients, epoch, step, index, which
            )
            numbers = rng.normal(key, int(np.prod(shape)))
            tensor = torch.from_numpy(numbers).to(order.model.theta.device, program.task.dtype)
            drawn.append(tensor.reshape(len(clients), *shape))
        out.append(tuple(drawn))
    return tuple(out)


def number_type(x: torch.Tensor) -> torch.dtype:
    """What weights of samples are kept in."""
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


# ---- loop ----------------------------------------------------------------------------------------
# The reference engine: one client after another, one step after another, nothing clever.

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


def local_data(program: ClientProgram, member: Member, always: bool = False) -> WholeData:
    """The member's data as whole batches, as far as the method asks to see them."""
    train = whole(member.train) if always or program.needs_train else None
    validation = None
    if always or program.needs_validation:
        validation = whole(member.validation or member.train)
    return WholeData(train, validation, None if train is None else member.train.rows)


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
    steps: int, samples: int, epochs: int, rate_total: float, carry: Carry, program: ClientProgram
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
            gradient = plain_gradient(program.task, batch, stats)(x)
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
    program = ClientProgram(Method("plain", ()), order.program.task, order.program.local_optimizer)
    given = order.given(member)._replace(received=x, memories=(), sent=())
    points, carry = [x], None
    for epoch, value in enumerate(rates, first):
        clock, rate = order.clock(epoch), _scalar(value, x)
        if carry is None:
            _, carry = program.start(given, rate, WholeData(), clock)
        for batch in epoch_batches(order, member.client, member.train, epoch):
            carry = program.step(given, x, carry, batch, rate, (), clock)
        points.append(carry.x)
    return points


def asked_view(
    order: Order, given: Given, local: WholeData, rate: Tensor, question: Callable[..., Tree]
) -> View:
    """The view of a client with these tensors for a question of the program's, without descent."""
    program, theta = order.program, given.received
    part = getattr(question, "__self__", None)
    index = program.method.index(part) if part is not None else 0
    view = program._view(given, theta, theta, given.stats, rate, order.clock(0), local)
    return program._own(view, given, None, index)


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=like.dtype, device=like.device)
