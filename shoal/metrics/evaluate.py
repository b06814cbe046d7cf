"""Accuracy and loss of one vector on one set of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from os import getpid
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.cores import cores
from shoal.metrics.gathered import gathered
from shoal.task import Task
from shoal.types import Batch, ClientData, Model

# Rows of an evaluation batch; fixed, because sums depend on them in the last bits. The maps of more
# images than these would not stay in the cache.
ROWS, IMAGES = 1024, 128


class Scores(NamedTuple):
    """Means over samples; ``accuracy`` is None where there are no classes."""

    accuracy: float | None
    loss: float


def slices(task: Task, data: ClientData) -> list[slice]:
    """Parts of a set, as many rows at once as are quickest."""
    many = ROWS if task.stackable else IMAGES
    return [slice(begin, begin + many) for begin in range(0, len(data), many)]


def batches(data: ClientData, parts: Sequence[slice]) -> Iterator[tuple[slice, Batch]]:
    kept = gathered(data)
    for part in parts:
        x = data.pool.x.index_select(0, data.rows[part]) if kept is None else kept[part]
        yield part, Batch(x, data.labels[part])


def evaluate(task: Task, model: Model, data: ClientData) -> Scores:
    """Scores of ``model`` on ``data``, batch by batch; rows weigh as ``data.weight`` says."""
    loss = correct = total = 0.0
    for part in _on_both_cores(task, model, data):  # in their order, whoever ran them
        loss, correct, total = loss + part.loss, correct + part.correct, total + part.weight
    if total == 0.0:
        return Scores(None, float("nan"))
    return Scores(None if task.classes is None else correct / total, loss / total)


class _Sums(NamedTuple):
    """Of one batch."""

    loss: float
    correct: float
    weight: float


def _on_both_cores(task: Task, model: Model, data: ClientData) -> list[_Sums]:
    """The sums of every batch; a second thread takes half of them where threads are one core each.

    A module's tensors are exchanged while it runs, so that thread has a task of its own.
    """
    twin: Task | None = getattr(task, "twin", None)
    parts = slices(task, data)
    alone = len(parts) < 2 or torch.get_num_threads() > 1 or cores() == 1
    if twin is None or alone or data.rows.is_cuda:
        return _sums(task, model, data, parts)
    gathered(data)  # by one thread, before two of them want it
    middle = len(parts) // 2
    later = _second_thread(getpid()).submit(_sums, twin, model, data, parts[middle:])
    try:
        return _sums(task, model, data, parts[:middle]) + later.result()
    finally:
        wait([later])  # never leave it running on the twin


@cache
def _second_thread(process: int) -> ThreadPoolExecutor:
    """One a process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(1, "evaluate", lambda: torch.set_num_threads(1))


@torch.inference_mode()
def _sums(task: Task, model: Model, data: ClientData, parts: Sequence[slice]) -> list[_Sums]:
    found = []
    for part, batch in batches(data, parts):
        weight = _weight(data, part, batch)
        outputs = task.forward(model.theta, batch, model.stats, False)
        loss = float((task.row_losses(outputs, batch) * weight).sum(dtype=torch.float64))
        correct = 0.0
        if task.classes is not None:
            hits = (outputs.logits.argmax(-1) == batch.y) * weight
            correct = float(hits.sum(dtype=torch.float64))
        found.append(_Sums(loss, correct, float(weight.sum(dtype=torch.float64))))
    return found


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
