"""Batches of one client: the same on every engine, from keys alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from shoal import rng
from shoal.engines.api import Order
from shoal.tree import Tree
from shoal.types import Batch, ClientData


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
        weight = torch.ones(length, dtype=_float(x), device=x.device)
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
        yield padded_batch(data, positions[begin:end], length)


def whole(data: ClientData) -> Batch:
    """All rows of a client as one batch."""
    x = data.pool.x.index_select(0, data.rows)
    weight = None if data.weight is None else data.weight.to(_float(x))
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


def _float(x: torch.Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()
