"""Several models at once, each on rows of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.metrics.evaluate import Scores
from shoal.task import Task
from shoal.types import Batch, ClientData, Model

MOST = 64  # models that are run at once
MOST_ROWS = 64 * 1024  # and their rows together, padding included


def side_by_side(task: Task, models: Sequence[Model], data: Sequence[ClientData]) -> list[Scores]:
    """Scores of every model on its own rows: those with about as many rows go together, padded to
    the longest. Models must have the same number of parameters, and rows must have no weights."""
    out: list[Scores | None] = [None] * len(models)
    for batch in _batches([len(d) for d in data]):
        found = _at_once(task, [models[i] for i in batch], [data[i] for i in batch])
        for i, scores in zip(batch, found, strict=True):
            out[i] = scores
    return [scores or Scores(None, float("nan")) for scores in out]  # None: it has no rows


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of models to run together, the ones with fewest rows first.

    >>> list(_batches([5, 0, 3]))
    [[2, 0]]
    """
    batch: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        if not sizes[i]:
            continue
        if batch and (len(batch) == MOST or (len(batch) + 1) * sizes[i] > MOST_ROWS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _at_once(task: Task, models: Sequence[Model], data: Sequence[ClientData]) -> list[Scores]:
    width = max(len(d) for d in data)
    places = [torch.arange(width, device=d.rows.device) % len(d) for d in data]  # pads repeat
    x = torch.stack([d.pool.x[d.rows[p]] for d, p in zip(data, places, strict=True)])
    y = torch.stack([d.labels[p] for d, p in zip(data, places, strict=True)])

    def one(theta: Tensor, stats: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(x, y)
        outputs = task.forward(theta, batch, stats, False)
        return outputs.logits.argmax(-1) == y, task.row_losses(outputs, batch)

    thetas, stats = (torch.stack([m[i] for m in models]) for i in (0, 1))
    hit, loss = torch.func.vmap(one)(thetas, stats, x, y)
    return [
        Scores(
            float(hit[i, : len(d)].sum(dtype=torch.float64)) / len(d),
            float(loss[i, : len(d)].sum(dtype=torch.float64)) / len(d),
        )
        for i, d in enumerate(data)
    ]
