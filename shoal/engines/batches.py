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
    return -(-rows // batch_rows(order, rows))


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
        weight = torch.ones(length, dtype=_float(x))
        weight[real:] = 0.0
        if data.weight is not None:
            weight = weight * data.weight[positions]
    return Batch(x, data.labels[positions], weight)


def epoch_batches(order: Order, client: int, data: ClientData, epoch: int) -> Iterator[Batch]:
    """The client's batches of one epoch; a ragged last one is padded to the run-wide length."""
    rows = len(data)
    positions = epoch_order(order, [client], [rows], epoch)[0, :rows]
    size = batch_rows(order, rows)
    for begin in range(0, rows, size):
        chosen = positions[begin : begin + size]
        yield padded_batch(data, chosen, size if order.pad else chosen.shape[0])


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
            tensor = torch.from_numpy(numbers).to(program.task.dtype)
            drawn.append(tensor.reshape(len(clients), *shape))
        out.append(tuple(drawn))
    return tuple(out)


def _float(x: torch.Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()
