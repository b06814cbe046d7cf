"""Further metrics by name: AUC, F1, regression errors, or a function of the user's.

A metric is ``(outputs, labels) -> number``: the model's outputs (``[n, classes]`` logits, or one
column for regression) and the labels of all rows, as tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.own_code import again, resolve

Metric = Callable[[Tensor, Tensor], float]


def auc(outputs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of the softmax of the outputs; with more than two classes the
    plain mean over classes, one against the rest, of those that have both kinds of rows."""
    from sklearn.metrics import roc_auc_score

    shares = torch.softmax(outputs.double(), -1)
    classes = range(1, 2) if shares.shape[-1] == 2 else range(shares.shape[-1])
    found = []
    for c in classes:
        mine = labels == c
        if bool(mine.any()) and not bool(mine.all()):
            found.append(float(roc_auc_score(mine.numpy(), shares[:, c].numpy())))
    return sum(found) / len(found) if found else float("nan")


def f1(outputs: Tensor, labels: Tensor) -> float:
    """Macro F1: the plain mean over the classes that are in the labels or predicted."""
    from sklearn.metrics import f1_score

    guess = outputs.argmax(-1)
    return float(f1_score(labels.numpy(), guess.numpy(), average="macro", zero_division=0))


def mae(outputs: Tensor, labels: Tensor) -> float:
    """Mean absolute error."""
    return float((_flat(outputs) - _flat(labels)).abs().mean())


def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Root of the mean squared error."""
    return float((_flat(outputs) - _flat(labels)).square().mean().sqrt())


def r2(outputs: Tensor, labels: Tensor) -> float:
    """``1 - sum (y - f)^2 / sum (y - mean y)^2``."""
    from sklearn.metrics import r2_score

    return float(r2_score(_flat(labels).numpy(), _flat(outputs).numpy()))


def _flat(values: Tensor) -> Tensor:
    return values.double().reshape(-1)


# By name, and by the answers that they are for; help and complaints list them from here.
OF_CLASSES: dict[str, Metric] = {"auc": auc, "f1": f1}
OF_NUMBERS: dict[str, Metric] = {"mae": mae, "rmse": rmse, "r2": r2}
METRICS = {**OF_CLASSES, **OF_NUMBERS}


def metric(name: str) -> Metric:
    """A metric by its name, or the user's as ``module:function``.

    >>> metric("math:fsum").__name__
    'fsum'
    """
    if name in METRICS:
        return METRICS[name]
    if ":" not in name:
        near = get_close_matches(name, METRICS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(METRICS)}"
        raise UserError(f"evaluate.metrics: {name!r} is not known; {hint}, or write one of your "
                        f"own as module:function")  # fmt: skip
    return resolve("evaluate.metrics", name)


def measured(names: Sequence[str], outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Every metric on the same outputs."""
    outputs, labels = outputs.detach().cpu(), labels.cpu()
    return {name: _number(name, outputs, labels) for name in names}


def check_own(names: Sequence[str], labels: Tensor, classes: int) -> None:
    """Call the functions of the user's on random outputs for the test rows, so that one that cannot
    be called is refused before a round is played."""
    own = [name for name in names if name not in METRICS]
    if own:
        drawn = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(0))
        for name in own:
            _number(name, drawn, labels.cpu())


def _number(name: str, outputs: Tensor, labels: Tensor) -> float:
    if name in METRICS:
        return METRICS[name](outputs, labels)
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
