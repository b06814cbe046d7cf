"""Accuracy and loss of one or many models on one or many sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from os import getpid
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from shoal.core.machine import cores
from shoal.core.task import ModuleTask, Task, learnt_of, weighed
from shoal.core.types import Batch, ClientData, Model
from shoal.metrics.losses import hits

# ---- gathered ------------------------------------------------------------------------------------
# The samples of an evaluation set, copied out of their pool once for as long as the set lives.

KEPT_BYTES = 2**26  # larger sets are copied batch by batch, so that memory stays bounded

# Row numbers -> (the pool's samples, those rows of them). A world hands out the same row numbers
# for as long as nothing changes; when it drops them, the copy goes too.
_copies: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def gathered(data: ClientData) -> Tensor | None:
    """``pool.x[rows]``; consecutive rows are a view and cost nothing. None if that is too much."""
    rows, x = data.rows, data.pool.x
    if consecutive(rows):
        return x[int(rows[0]) : int(rows[0]) + len(rows)] if len(rows) else x[:0]
    known = _copies.get(rows, None)  # type: ignore[no-untyped-call]
    if known is not None and known[0] is x:
        found: Tensor = known[1]
        return found
    if len(rows) * x[0].numel() * x.element_size() > KEPT_BYTES:
        return None
    _copies[rows] = (x, x.index_select(0, rows))
    return gathered(data)


def consecutive(rows: Tensor) -> bool:
    """Whether rows are a, a + 1, a + 2 ..."""
    if len(rows) < 2:
        return True
    if int(rows[-1]) - int(rows[0]) != len(rows) - 1:
        return False
    first = int(rows[0])
    return torch.equal(rows, torch.arange(first, first + len(rows), device=rows.device))


# ---- united --------------------------------------------------------------------------------------
# Sets of many members as one, put together once for as long as members keep theirs.

# Row numbers of the first set -> (all sets, what they are together). It keeps no set alive.
_unions: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def united(data: Sequence[ClientData]) -> ClientData:
    """All rows of sets of one pool and without weights, one set after the other.

    The same sets give the same tensors, so that what was made of those can be found again.
    """
    known = _unions.get(data[0].rows, None)  # type: ignore[no-untyped-call]
    if known is not None and [id(kept()) for kept in known[0]] == [id(one) for one in data]:
        same: ClientData = known[1]
        return same
    rows, labels = torch.cat([d.rows for d in data]), torch.cat([d.labels for d in data])
    union = ClientData(data[0].pool, rows, labels, float(len(rows)))
    _unions[data[0].rows] = ([ref(d) for d in data], union)
    return union


# ---- evaluate ------------------------------------------------------------------------------------
# Accuracy and loss of one vector on one set of samples.

# Rows of an evaluation batch; fixed, because sums depend on them in the last bits. The maps of more
# images than these would not stay in the cache.
ROWS, IMAGES = 1024, 128


class Scores(NamedTuple):
    """Means over samples (pixels, tokens); ``accuracy`` is R2 where numbers are learnt (see
    :func:`shoal.metrics.losses.hits`), and None where nothing says how far off they are."""

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


class BatchScores(NamedTuple):
    """What a model makes of the rows of one batch."""

    loss: Tensor
    hit: Tensor | None


# Batches that somebody else puts through a model; None if that would take longer.
Elsewhere = Callable[[Model, ClientData, Sequence[slice]], Sequence[BatchScores] | None]


@torch.inference_mode()
def passes(
    task: Task, model: Model, data: ClientData, parts: Sequence[slice]
) -> Iterator[BatchScores]:
    learnt = learnt_of(task)
    for _, batch in batches(data, parts):
        outputs = task.forward(model.theta, batch, model.stats, False)
        yield BatchScores(task.row_losses(outputs, batch), hits(learnt, outputs.logits, batch.y))


def evaluate(
    task: Task, model: Model, data: ClientData, elsewhere: Elsewhere | None = None
) -> Scores:
    """Scores of ``model`` on ``data``, batch by batch; rows weigh as ``data.weight`` says."""
    loss = correct = total = 0.0
    for part in _on_all_cores(task, model, data, elsewhere):  # in their order, whoever ran them
        loss, correct, total = loss + part.loss, correct + part.correct, total + part.weight
    if total == 0.0:
        return Scores(None, float("nan"))
    return Scores(correct / total if learnt_of(task).scored else None, loss / total)


class _Sums(NamedTuple):
    """Of one batch."""

    loss: float
    correct: float
    weight: float


def _on_all_cores(
    task: Task, model: Model, data: ClientData, elsewhere: Elsewhere | None
) -> list[_Sums]:
    """The sums of every batch, in their order, by as many threads as there are cores.

    A module's tensors are exchanged while it runs, so every further thread has a task of its own.
    """
    parts = slices(task, data)
    far = None if elsewhere is None else elsewhere(model, data, parts)
    if far is not None:
        return _summed(task, data, parts, far)
    threads = min(cores(), len(parts))
    several = threads > 1 and torch.get_num_threads() == 1 and data.rows.device.type == "cpu"
    if not several or not isinstance(task, ModuleTask):
        return _sums(task, model, data, parts)
    gathered(data)  # by one thread, before several of them want it
    cuts = [len(parts) * i // threads for i in range(threads + 1)]
    shares = [parts[i:j] for i, j in zip(cuts, cuts[1:], strict=False)]
    pool, tasks = _threads(getpid(), cores()), _evaluate_copies(task, threads - 1)
    later = [
        pool.submit(_sums, own, model, data, share)
        for own, share in zip(tasks, shares[1:], strict=True)
    ]
    try:
        found = _sums(task, model, data, shares[0])
        return found + [sums for share in later for sums in share.result()]
    finally:
        wait(later)  # never leave them running on their tasks


def _evaluate_copies(task: ModuleTask, count: int) -> list[ModuleTask]:
    """Copies of a task, made once."""
    made: list[ModuleTask] = vars(task).setdefault("_copies", [])
    while len(made) < count:
        made.append(task.copy())
    return made[:count]


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Made once per process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(count, "evaluate", lambda: torch.set_num_threads(1))


def _sums(task: Task, model: Model, data: ClientData, parts: Sequence[slice]) -> list[_Sums]:
    return _summed(task, data, parts, passes(task, model, data, parts))


@torch.inference_mode()
def _summed(
    task: Task, data: ClientData, parts: Sequence[slice], passed: Iterable[BatchScores]
) -> list[_Sums]:
    found, learnt = [], learnt_of(task)
    for part, (losses, right) in zip(parts, passed, strict=True):
        weight = _weight(data, part, learnt.ignored)
        loss = float((losses * weight).sum(dtype=torch.float64))
        correct = 0.0 if right is None else float((right * weight).sum(dtype=torch.float64))
        found.append(_Sums(loss, correct, float(weight.sum(dtype=torch.float64))))
    return found


def _weight(data: ClientData, part: slice, ignored: int | None) -> Tensor:
    y = data.labels[part]
    if data.weight is not None:
        weight = data.weight[part]
    else:
        weight = torch.ones(len(y), dtype=torch.float32, device=data.pool.x.device)
    return weighed(ignored, y, weight)


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


# ---- side by side --------------------------------------------------------------------------------
# Several models at once, each on rows of its own.

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

    learnt = learnt_of(task)

    def one(theta: Tensor, stats: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(x, y)
        outputs = task.forward(theta, batch, stats, False)
        right = hits(learnt, outputs.logits, y)
        assert right is not None, "what has no scores is run one by one"
        return right, task.row_losses(outputs, batch)

    thetas, stats = (torch.stack([m[i] for m in models]) for i in (0, 1))
    hit, loss = torch.func.vmap(one)(thetas, stats, x, y)
    return [
        Scores(
            float(hit[i, : len(d)].sum(dtype=torch.float64)) / len(d),
            float(loss[i, : len(d)].sum(dtype=torch.float64)) / len(d),
        )
        for i, d in enumerate(data)
    ]


# ---- rows ----------------------------------------------------------------------------------------
# Many sets, one pass: every row is put through the model once, whichever sets it is in.


class RowScores(NamedTuple):
    """What a model makes of each row; ``hit`` is empty where there are no scores."""

    hit: Tensor
    loss: Tensor
    weight: Tensor


@torch.inference_mode()
def row_scores(
    task: Task, model: Model, data: ClientData, elsewhere: Elsewhere | None = None
) -> RowScores:
    learnt, parts = learnt_of(task), slices(task, data)
    far = None if elsewhere is None else elsewhere(model, data, parts)
    found = list(passes(task, model, data, parts) if far is None else far)
    losses, right = [one.loss for one in found], [one.hit for one in found if one.hit is not None]
    loss = torch.cat(losses).double()
    weight = torch.ones_like(loss) if data.weight is None else data.weight.double()
    weight = weighed(learnt.ignored, data.labels, weight)
    hit = torch.cat(right).double() if right else loss.new_empty(0)
    return RowScores(hit, loss, weight)


@torch.inference_mode()
def outputs_of(task: Task, model: Model, data: ClientData) -> Iterator[tuple[Tensor, Tensor]]:
    """What a model says of rows, batch by batch, and their labels."""
    for _, batch in batches(data, slices(task, data)):
        yield task.forward(model.theta, batch, model.stats, False).logits, batch.y


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


def evaluate_sets(
    task: Task, model: Model, sets: Mapping[str, ClientData], elsewhere: Elsewhere | None = None
) -> dict[str, Scores]:
    """Scores of every set. Rows that several sets share, with the same label, are run once.

    Sets that do not point into one pool, or whose rows have weights, are run one by one.
    """
    found = list(sets.values())
    if len(found) < 2 or not _alike(found):
        return {name: evaluate(task, model, data, elsewhere) for name, data in sets.items()}
    rows, labels = torch.cat([d.rows for d in found]), torch.cat([d.labels for d in found])
    most = int(labels.max()) + 1 if len(labels) else 1
    pairs, place = torch.unique(rows * most + labels, return_inverse=True)
    union = ClientData(found[0].pool, pairs // most, pairs % most, float(len(pairs)))
    scores = row_scores(task, model, union, elsewhere)
    parts = torch.split(place, [len(d) for d in found])
    return {name: over(scores, part) for name, part in zip(sets, parts, strict=True)}


def evaluate_each(
    task: Task, model: Model, data: Sequence[ClientData], elsewhere: Elsewhere | None = None
) -> list[Scores]:
    """Scores of one model on every member's data, in one pass over all rows."""
    if not data:
        return []
    alone = learnt_of(task).ignored is not None  # rows count as much as there is in them
    if alone or any(d.pool is not data[0].pool or d.weight is not None for d in data):
        return [evaluate(task, model, d, elsewhere) for d in data]
    scores, sizes = row_scores(task, model, united(data), elsewhere), [len(d) for d in data]
    losses = _rows_sums(scores.loss, sizes)
    hits = _rows_sums(scores.hit, sizes) if len(scores.hit) else [None] * len(sizes)
    return [
        Scores(None if hit is None else hit / rows, loss / rows)
        if rows
        else Scores(None, float("nan"))
        for loss, hit, rows in zip(losses, hits, sizes, strict=True)
    ]


def _rows_sums(values: Tensor, sizes: Sequence[int]) -> list[float]:
    """Of so many values each, one after the other."""
    owners = torch.repeat_interleave(torch.tensor(sizes, device=values.device))
    found: list[float] = values.new_zeros(len(sizes)).index_add_(0, owners, values).tolist()
    return found


@torch.inference_mode()
def evaluate_own(
    task: Task,
    models: Sequence[Model],
    data: Sequence[ClientData],
    elsewhere: Elsewhere | None = None,
) -> list[Scores]:
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
        found = evaluate_each(task, models[same[0]], [data[i] for i in same], elsewhere)
        out |= dict(zip(same, found, strict=True))
    for alike in own.values():
        mine, rows = [models[i] for i in alike], [data[i] for i in alike]
        scores: list[Scores] | None = None
        learnt = learnt_of(task)
        equal = learnt.ignored is None and all(d.weight is None for d in rows)
        if task.stackable and learnt.scored and equal:
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
