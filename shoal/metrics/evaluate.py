"""Accuracy and loss of one vector on one set of samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from os import getpid
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.task import Task
from shoal.types import Batch, ClientData, Model

ROWS = 1024  # rows of an evaluation batch; fixed, because sums depend on it in the last bits


class Scores(NamedTuple):
    """Means over samples; ``accuracy`` is None where there are no classes."""

    accuracy: float | None
    loss: float


def evaluate(task: Task, model: Model, data: ClientData, rows: int = ROWS) -> Scores:
    """Scores of ``model`` on ``data``, batch by batch; rows weigh as ``data.weight`` says."""
    batches = [slice(begin, begin + rows) for begin in range(0, len(data), rows)]
    loss = correct = total = 0.0
    for part in _on_both_cores(task, model, data, batches):  # in their order, whoever ran them
        loss, correct, total = loss + part.loss, correct + part.correct, total + part.weight
    if total == 0.0:
        return Scores(None, float("nan"))
    return Scores(None if task.classes is None else correct / total, loss / total)


class _Sums(NamedTuple):
    """Of one batch."""

    loss: float
    correct: float
    weight: float


def _on_both_cores(task: Task, model: Model, data: ClientData, batches: list[slice]) -> list[_Sums]:
    """The sums of every batch; a second thread takes half of them where threads are one core each.

    A module's tensors are exchanged while it runs, so that thread has a task of its own.
    """
    twin: Task | None = getattr(task, "twin", None)
    if twin is None or len(batches) < 2 or torch.get_num_threads() > 1 or data.rows.is_cuda:
        return _sums(task, model, data, batches)
    middle = len(batches) // 2
    later = _second_thread(getpid()).submit(_sums, twin, model, data, batches[middle:])
    try:
        return _sums(task, model, data, batches[:middle]) + later.result()
    finally:
        wait([later])  # never leave it running on the twin


@cache
def _second_thread(process: int) -> ThreadPoolExecutor:
    """One a process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(1, "evaluate", lambda: torch.set_num_threads(1))


@torch.inference_mode()
def _sums(task: Task, model: Model, data: ClientData, batches: list[slice]) -> list[_Sums]:
    found = []
    for part in batches:
        batch, weight = _batch(data, part)
        outputs = task.forward(model.theta, batch, model.stats, False)
        loss = float((task.row_losses(outputs, batch) * weight).sum(dtype=torch.float64))
        correct = 0.0
        if task.classes is not None:
            hits = (outputs.logits.argmax(-1) == batch.y) * weight
            correct = float(hits.sum(dtype=torch.float64))
        found.append(_Sums(loss, correct, float(weight.sum(dtype=torch.float64))))
    return found


def _batch(data: ClientData, part: slice) -> tuple[Batch, Tensor]:
    chosen = data.rows[part]
    x = data.pool.x.index_select(0, chosen)
    if data.weight is not None:
        weight = data.weight[part]
    else:
        weight = torch.ones(chosen.shape[0], dtype=torch.float32, device=x.device)
    return Batch(x, data.labels[part]), weight


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
