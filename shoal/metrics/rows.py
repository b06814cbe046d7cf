"""Many sets, one pass: every row is put through the model once, whichever sets it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.metrics.evaluate import ROWS, Scores, evaluate
from shoal.task import Task
from shoal.types import Batch, ClientData, Model

MOST = 64  # members whose own models are run side by side


class RowScores(NamedTuple):
    """What a model makes of each row; ``hit`` is empty where there are no classes."""

    hit: Tensor
    loss: Tensor
    weight: Tensor
    outputs: Tensor  # empty unless asked for


@torch.inference_mode()
def row_scores(task: Task, model: Model, data: ClientData, outputs: bool = False) -> RowScores:
    hits, losses, kept = [], [], []
    for begin in range(0, len(data), ROWS):
        part = slice(begin, begin + ROWS)
        batch = Batch(data.pool.x.index_select(0, data.rows[part]), data.labels[part])
        found = task.forward(model.theta, batch, model.stats, False)
        losses.append(task.row_losses(found, batch))
        if task.classes is not None:
            hits.append(found.logits.argmax(-1) == batch.y)
        if outputs:
            kept.append(found.logits)
    loss = torch.cat(losses).double()
    weight = torch.ones_like(loss) if data.weight is None else data.weight.double()
    none = loss.new_empty(0)
    hit = torch.cat(hits).double() if hits else none
    return RowScores(hit, loss, weight, torch.cat(kept) if kept else none)


def over(scores: RowScores, rows: Tensor | slice) -> Scores:
    """Scores of some of the rows (with repetition, if they repeat)."""
    weight = scores.weight[rows]
    total = float(weight.sum())
    if total == 0.0:
        return Scores(None, float("nan"))
    loss = float((scores.loss[rows] * weight).sum()) / total
    if not len(scores.hit):
        return Scores(None, loss)
    return Scores(float((scores.hit[rows] * weight).sum()) / total, loss)


def evaluate_sets(task: Task, model: Model, sets: Mapping[str, ClientData]) -> dict[str, Scores]:
    """Scores of every set. Rows that several sets share, with the same label, are run once.

    Sets that do not point into one pool, or whose rows have weights, are run one by one.
    """
    found = list(sets.values())
    if len(found) < 2 or not _alike(found):
        return {name: evaluate(task, model, data) for name, data in sets.items()}
    rows, labels = torch.cat([d.rows for d in found]), torch.cat([d.labels for d in found])
    most = int(labels.max()) + 1 if len(labels) else 1
    pairs, place = torch.unique(rows * most + labels, return_inverse=True)
    union = ClientData(found[0].pool, pairs // most, pairs % most, float(len(pairs)))
    scores = row_scores(task, model, union)
    parts = torch.split(place, [len(d) for d in found])
    return {name: over(scores, part) for name, part in zip(sets, parts, strict=True)}


def evaluate_each(task: Task, model: Model, data: Sequence[ClientData]) -> list[Scores]:
    """Scores of one model on every member's data, in one pass over all rows."""
    if not data:
        return []
    if any(d.pool is not data[0].pool or d.weight is not None for d in data):
        return [evaluate(task, model, d) for d in data]
    rows, labels = torch.cat([d.rows for d in data]), torch.cat([d.labels for d in data])
    scores = row_scores(task, model, ClientData(data[0].pool, rows, labels, float(len(rows))))
    ends = torch.tensor([len(d) for d in data]).cumsum(0).tolist()
    begins = [0, *ends[:-1]]
    return [over(scores, slice(a, b)) for a, b in zip(begins, ends, strict=True)]


@torch.inference_mode()
def evaluate_own(task: Task, models: Sequence[Model], data: Sequence[ClientData]) -> list[Scores]:
    """Scores of every member's own model on its own data, ``MOST`` members side by side.

    Convolutions, running statistics and weighted rows are run one by one.
    """
    plain = task.stackable and task.classes is not None and not models[0].stats.numel()
    if not plain or any(d.weight is not None for d in data):
        return [evaluate(task, m, d) for m, d in zip(models, data, strict=True)]
    out: list[Scores] = []
    for begin in range(0, len(models), MOST):
        some = slice(begin, begin + MOST)
        out += _side_by_side(task, models[some], data[some])
    return out


def _side_by_side(task: Task, models: Sequence[Model], data: Sequence[ClientData]) -> list[Scores]:
    width = max(len(d) for d in data)
    places = [torch.arange(width, device=d.rows.device) % len(d) for d in data]  # pads repeat
    x = torch.stack([d.pool.x[d.rows[p]] for d, p in zip(data, places, strict=True)])
    y = torch.stack([d.labels[p] for d, p in zip(data, places, strict=True)])
    stats = models[0].stats

    def one(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(x, y)
        outputs = task.forward(theta, batch, stats, False)
        return outputs.logits.argmax(-1) == y, task.row_losses(outputs, batch)

    hit, loss = torch.func.vmap(one)(torch.stack([m.theta for m in models]), x, y)
    return [
        Scores(
            float(hit[i, : len(d)].sum(dtype=torch.float64)) / len(d),
            float(loss[i, : len(d)].sum(dtype=torch.float64)) / len(d),
        )
        for i, d in enumerate(data)
    ]


def _alike(data: Sequence[ClientData]) -> bool:
    first = data[0]
    return all(
        d.pool is first.pool
        and d.weight is None
        and d.labels.dim() == 1
        and not d.labels.is_floating_point()
        for d in data
    )
