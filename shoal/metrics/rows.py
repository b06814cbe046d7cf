"""Many sets, one pass: every row is put through the model once, whichever sets it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.metrics.evaluate import Scores, batches, evaluate, slices
from shoal.metrics.side_by_side import side_by_side
from shoal.metrics.united import united
from shoal.task import Task
from shoal.types import ClientData, Model


class RowScores(NamedTuple):
    """What a model makes of each row; ``hit`` is empty where there are no classes."""

    hit: Tensor
    loss: Tensor
    weight: Tensor
    outputs: Tensor  # empty unless asked for


@torch.inference_mode()
def row_scores(task: Task, model: Model, data: ClientData, outputs: bool = False) -> RowScores:
    hits, losses, kept = [], [], []
    for _, batch in batches(data, slices(task, data)):
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
    scores, sizes = row_scores(task, model, united(data)), [len(d) for d in data]
    losses = _sums(scores.loss, sizes)
    hits = _sums(scores.hit, sizes) if len(scores.hit) else [None] * len(sizes)
    return [
        Scores(None if hit is None else hit / rows, loss / rows)
        if rows
        else Scores(None, float("nan"))
        for loss, hit, rows in zip(losses, hits, sizes, strict=True)
    ]


def _sums(values: Tensor, sizes: Sequence[int]) -> list[float]:
    """Of so many values each, one after the other."""
    owners = torch.repeat_interleave(torch.tensor(sizes, device=values.device))
    found: list[float] = values.new_zeros(len(sizes)).index_add_(0, owners, values).tolist()
    return found


@torch.inference_mode()
def evaluate_own(task: Task, models: Sequence[Model], data: Sequence[ClientData]) -> list[Scores]:
    """Scores of every member's own model on its own data.

    Members that have one and the same model (those of a bank) are run in one pass; models of
    members' own are run side by side, but for convolutions, weighted rows and networks that
    ``vmap`` has no rule for (``nn.RNN``), which are run one by one.
    """
    out: dict[int, Scores] = {}
    own: dict[int, list[int]] = {}  # by the number of parameters
    for same in _same_models(models):
        if len(same) == 1:
            own.setdefault(len(models[same[0]].theta), []).append(same[0])
            continue
        found = evaluate_each(task, models[same[0]], [data[i] for i in same])
        out |= dict(zip(same, found, strict=True))
    for alike in own.values():
        mine, rows = [models[i] for i in alike], [data[i] for i in alike]
        scores: list[Scores] | None = None
        if task.stackable and task.classes is not None and all(d.weight is None for d in rows):
            with suppress(RuntimeError):  # one by one is always right, and says what is not
                scores = side_by_side(task, mine, rows)
        if scores is None:
            scores = [evaluate(task, m, d) for m, d in zip(mine, rows, strict=True)]
        out |= dict(zip(alike, scores, strict=True))
    return [out[i] for i in range(len(models))]


def _same_models(models: Sequence[Model]) -> list[list[int]]:
    """Places of one and the same tensors, in order of appearance."""
    places: dict[tuple[int, int], list[int]] = {}
    for i, model in enumerate(models):
        places.setdefault((id(model.theta), id(model.stats)), []).append(i)
    return list(places.values())


def _alike(data: Sequence[ClientData]) -> bool:
    first = data[0]
    return all(
        d.pool is first.pool
        and d.weight is None
        and d.labels.dim() == 1
        and not d.labels.is_floating_point()
        for d in data
    )
