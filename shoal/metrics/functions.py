"""Further metrics by name: AUC, F1, errors of numbers, IoU, perplexity, or the user's function.

A metric is ``(outputs, labels) -> number``: the model's outputs (their shapes are in
:mod:`shoal.metrics.losses`) and the labels of all rows, as tensors on the CPU. Higher is better,
unless ``LOWER`` says otherwise, or a function of the user's has the attribute ``better = "lower"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.old_names import OF_MEMBERS
from shoal.core.own_code import again, resolve
from shoal.core.task import cross_entropy_rows
from shoal.core.types import Target
from shoal.metrics.losses import like_outputs

Metric = Callable[[Tensor, Tensor], float]


def auc(outputs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of the softmax of the outputs; with more than two classes (or
    several labels) the plain mean over them, one against the rest, of those that have both kinds of
    rows."""
    from sklearn.metrics import roc_auc_score

    several = labels.dim() == 2
    shares = torch.sigmoid(outputs.double()) if several else torch.softmax(outputs.double(), -1)
    classes = range(1, 2) if shares.shape[-1] == 2 and not several else range(shares.shape[-1])
    found = []
    for c in classes:
        mine = labels[:, c] > 0.5 if several else labels == c
        if bool(mine.any()) and not bool(mine.all()):
            found.append(float(roc_auc_score(mine.numpy(), shares[:, c].numpy())))
    return sum(found) / len(found) if found else float("nan")


def f1(outputs: Tensor, labels: Tensor) -> float:
    """Macro F1: the plain mean over the classes that are in the labels or predicted (over all
    labels, where a row has several)."""
    from sklearn.metrics import f1_score

    guess = outputs > 0 if labels.dim() == 2 else outputs.argmax(-1)
    right = labels > 0.5 if labels.dim() == 2 else labels
    return float(f1_score(right.numpy(), guess.numpy(), average="macro", zero_division=0))


def mae(outputs: Tensor, labels: Tensor) -> float:
    """Mean absolute error."""
    return float((_flat(outputs) - _flat(labels)).abs().mean())


def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root of the mean squared error."""
    return float((_flat(outputs) - _flat(labels)).square().mean().sqrt())


def r2(outputs: Tensor, labels: Tensor) -> float:
    """``1 - sum (y - f)^2 / sum (y - mean y)^2``; of several columns the plain mean. Of a column
    that never varies it is 1 where every row is right, else 0 (as scikit-learn has it, whose import
    would take longer than many a run)."""
    outputs = outputs.double()
    labels = like_outputs(labels, outputs)
    missed = (labels - outputs).square().sum(0)
    there = (labels - labels.mean(0)).square().sum(0)
    constant = torch.where(missed == 0, 1.0, 0.0)
    return float(torch.where(there > 0, 1.0 - missed / there, constant).mean())


def _flat(values: Tensor) -> Tensor:
    return values.double().reshape(-1)


class Summed(NamedTuple):
    """A metric of pixels or tokens, whose outputs are too many to keep: what batches add up to, and
    the figure that it comes to. What is ignored is left out by then."""

    part: Callable[[Tensor, Tensor], Tensor]  # outputs [positions, classes], their labels
    whole: Callable[[Tensor], float]


def _confused(outputs: Tensor, labels: Tensor) -> Tensor:
    """Counts [classes, classes]: rows are labels, columns what was said."""
    classes = outputs.shape[-1]
    pairs = labels * classes + outputs.argmax(-1)
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).double()


def _mean_iou(counts: Tensor) -> float:
    """Intersection over union, the plain mean over classes that are in the labels or predicted."""
    both, either = counts.diag(), counts.sum(0) + counts.sum(1) - counts.diag()
    return float((both[either > 0] / either[either > 0]).mean())


def _surprise(outputs: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropies, and their number."""
    losses = cross_entropy_rows(outputs.double(), labels)
    return torch.stack([losses.sum(), losses.new_tensor(float(len(losses)))])


SUMMED = {
    "iou": Summed(_confused, _mean_iou),
    "perplexity": Summed(_surprise, lambda sums: float((sums[0] / sums[1]).exp())),
}
# By name, and by the answers that they are for; help and complaints list them from here.
OF_CLASSES: dict[str, Metric] = {"auc": auc, "f1": f1}
OF_NUMBERS: dict[str, Metric] = {"mae": mae, "rmse": rmse, "r2": r2}
WHOLE = {**OF_CLASSES, **OF_NUMBERS}
METRICS = (*WHOLE, *SUMMED)
FITTING: dict[Target, tuple[str, ...]] = {
    "class": (*OF_CLASSES, "perplexity"),
    "multi_label": ("f1", "auc"),
    "number": ("r2", "rmse", "mae"),
    "dense": ("iou", "perplexity"),
    "token": ("perplexity",),
}
# without a choice; what has one class is judged by its accuracy alone
DEFAULTS = FITTING | {"class": (), "dense": ("iou",)}
LOWER = ("mae", "rmse", "perplexity")
# what runs are judged by, ranked by and compared in, instead of accuracy: shares of 1 as that is
SCORES: dict[Target, str] = {"multi_label": "f1", "number": "r2", "dense": "iou"}


def score_name(target: Target, names: Sequence[str], rows: str) -> str:
    """What a run is judged by: accuracy (there is none of numbers) where that score was not asked
    for, or members are scored on rows of their own, which further metrics do not look at."""
    best, looked = SCORES.get(target, "accuracy"), target == "number" or rows not in OF_MEMBERS
    return best if best in names and looked else "accuracy"


def lower_is_better(names: Sequence[str]) -> list[str]:
    """Those of some metrics whose best figure is the lowest."""
    own = {name: again("evaluate.metrics", name) for name in names if ":" in name}
    return [n for n in names if n in LOWER or getattr(own.get(n), "better", "") == "lower"]


def metric(name: str) -> Metric:
    """A metric by its name, or the user's as ``module:function``.

    >>> metric("math:fsum").__name__
    'fsum'
    """
    if name in WHOLE:
        return WHOLE[name]
    if ":" not in name:
        near = get_close_matches(name, METRICS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(METRICS)}"
        raise UserError(f"evaluate.metrics: {name!r} is not known; {hint}, or write one of your "
                        f"own as module:function")  # fmt: skip
    return resolve("evaluate.metrics", name)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that are not known, and functions that cannot be imported."""
    for name in names:
        if name not in METRICS:
            metric(name)


def measured(
    names: Sequence[str], parts: Iterable[tuple[Tensor, Tensor]], ignored: int | None = None
) -> dict[str, float]:
    """Every metric on the same outputs, which come in parts with their labels."""
    sums: dict[str, Tensor] = {}
    kept: list[tuple[Tensor, Tensor]] = []
    whole = [name for name in names if name not in SUMMED]
    for outputs, labels in parts:
        outputs, labels = outputs.detach().cpu(), labels.cpu()
        if whole:
            kept.append((outputs, labels))
        if len(whole) < len(names):
            outputs, labels = _counted(outputs, labels, ignored)
        for name in names:
            if name in SUMMED:
                added = SUMMED[name].part(outputs, labels)
                sums[name] = sums[name] + added if name in sums else added
    found = {name: SUMMED[name].whole(total) for name, total in sums.items()}
    if whole:
        outputs, labels = (torch.cat(tensors) for tensors in zip(*kept, strict=True))
        if labels.dim() == 1 and ignored is not None:
            outputs, labels = _counted(outputs, labels, ignored)
        found |= {name: _number(name, outputs, labels) for name in whole}
    return {name: found[name] for name in names}


def _counted(outputs: Tensor, labels: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Outputs [positions, classes] and labels of what counts."""
    if labels.dim() == 3:  # pixels: classes come first
        outputs = outputs.movedim(1, -1)
    outputs, labels = outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1)
    return (outputs, labels) if ignored is None else (
        outputs[labels != ignored], labels[labels != ignored])  # fmt: skip


def check_own(names: Sequence[str], labels: Tensor, shape: tuple[int, ...]) -> None:
    """Call the functions of the user's on random outputs for the test rows, so that one that cannot
    be called is refused before a round is played."""
    own = [name for name in names if name not in METRICS]
    if own:
        labels = labels if labels.dim() == 1 else labels[:256]
        drawn = torch.randn(len(labels), *shape, generator=torch.Generator().manual_seed(0))
        for name in own:
            _number(name, drawn, labels.cpu())


def _number(name: str, outputs: Tensor, labels: Tensor) -> float:
    if name in METRICS:
        return WHOLE[name](outputs, labels)
    try:
        return float(again("evaluate.metrics", name)(outputs, labels))
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"evaluate.metrics: {name!r} must make a number of outputs of shape "
            f"{tuple(outputs.shape)} and labels of shape {tuple(labels.shape)}, and does not "
            f"({reason})"
        ) from error
