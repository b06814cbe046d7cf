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
from shoal.task import ModuleTask, Task
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
    for part in _on_all_cores(task, model, data):  # in their order, whoever ran them
        loss, correct, total = loss + part.loss, correct + part.correct, total + part.weight
    if total == 0.0:
        return Scores(None, float("nan"))
    return Scores(None if task.classes is None else correct / total, loss / total)


class _Sums(NamedTuple):
    """Of one batch."""

    loss: float
    correct: float
    weight: float


def _on_all_cores(task: Task, model: Model, data: ClientData) -> list[_Sums]:
    """The sums of every batch, in their order, by as many threads as there are cores.

    A module's tensors are exchanged while it runs, so every further thread has a task of its own.
    """
    parts = slices(task, data)
    threads = min(cores(), len(parts))
    several = threads > 1 and torch.get_num_threads() == 1 and data.rows.device.type == "cpu"
    if not several or not isinstance(task, ModuleTask):
        return _sums(task, model, data, parts)
    gathered(data)  # by one thread, before several of them want it
    cuts = [len(parts) * i // threads for i in range(threads + 1)]
    shares = [parts[i:j] for i, j in zip(cuts, cuts[1:], strict=False)]
    pool, tasks = _threads(getpid(), cores()), _copies(task, threads - 1)
    later = [
        pool.submit(_sums, own, model, data, share)
        for own, share in zip(tasks, shares[1:], strict=True)
    ]
    try:
        found = _sums(task, model, data, shares[0])
        return found + [sums for share in later for sums in share.result()]
    finally:
        wait(later)  # never leave them running on their tasks


def _copies(task: ModuleTask, count: int) -> list[ModuleTask]:
    """Copies of a task, made once."""
    made: list[ModuleTask] = vars(task).setdefault("_copies", [])
    while len(made) < count:
        made.append(task.copy())
    return made[:count]


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Made once per process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(count, "evaluate", lambda: torch.set_num_threads(1))


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
