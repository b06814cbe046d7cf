"""Accuracy and loss of one vector on one set of samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.metrics.gathered import gathered
from shoal.task import Task
from shoal.types import Batch, ClientData, Model

# Rows of an evaluation batch; fixed, because sums depend on them in the last bits. The maps of more
# images than these would not stay in the cache: 1,024 take three times as long.
ROWS, IMAGES = 1024, 128


class Scores(NamedTuple):
    """Means over samples; ``accuracy`` is None where there are no classes."""

    accuracy: float | None
    loss: float


def batches(task: Task, data: ClientData) -> Iterator[tuple[slice, Batch]]:
    """The samples of a set, as many at once as are quickest."""
    many = ROWS if task.stackable else IMAGES
    x = gathered(data)
    for begin in range(0, len(data), many):
        part = slice(begin, begin + many)
        yield part, Batch(x[part], data.labels[part])


@torch.inference_mode()
def evaluate(task: Task, model: Model, data: ClientData) -> Scores:
    """Scores of ``model`` on ``data``, batch by batch; rows weigh as ``data.weight`` says."""
    loss = correct = total = 0.0
    for part, batch in batches(task, data):
        weight = _weight(data, part, batch)
        outputs = task.forward(model.theta, batch, model.stats, False)
        loss += float((task.row_losses(outputs, batch) * weight).sum(dtype=torch.float64))
        if task.classes is not None:
            hits = (outputs.logits.argmax(-1) == batch.y) * weight
            correct += float(hits.sum(dtype=torch.float64))
        total += float(weight.sum(dtype=torch.float64))
    if total == 0.0:
        return Scores(None, float("nan"))
    return Scores(None if task.classes is None else correct / total, loss / total)


def _weight(data: ClientData, part: slice, batch: Batch) -> Tensor:
    if data.weight is not None:
        return data.weight[part]
    return torch.ones(len(batch.y), dtype=torch.float32, device=batch.x.device)


def mean_scores(scores: list[Scores]) -> Scores:
    """The plain mean over sets (members, tasks), each counting the same.

    >>> mean_scores([Scores(1.0, 0.5), Scores(0.5, 1.5)])
    Scores(accuracy=0.75, loss=1.0)
    """
    known = [s.accuracy for s in scores if s.accuracy is not None]
    accuracy = sum(known) / len(known) if known else None
    losses = [s.loss for s in scores]
    return Scores(accuracy, sum(losses) / len(losses) if losses else float("nan"))


def pooled_scores(scores: list[Scores], data: list[ClientData]) -> Scores:
    """The mean over all rows of all sets: a set weighs as many rows as it has."""
    sized = [(s, len(d)) for s, d in zip(scores, data, strict=True) if len(d)]
    total = sum(rows for _, rows in sized)
    if not total:
        return Scores(None, float("nan"))
    loss = sum(s.loss * rows for s, rows in sized) / total
    if any(s.accuracy is None for s, _ in sized):
        return Scores(None, loss)
    return Scores(sum((s.accuracy or 0.0) * rows for s, rows in sized) / total, loss)
