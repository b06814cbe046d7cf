"""Losses by name, one number per row; what each target is learnt with, and what counts as right.

A loss is ``(outputs, targets) -> [rows]``. Shapes are torch's but for tokens, where a network gives
what language models give: class [n, C]; multi_label [n, L]; number [n, 1] or [n, d]; dense
[n, C, H, W]; token [n, T, C].

Engines map losses over clients and record their operators, so they are written with operators that
do not look at values (a gather where torch indexes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, l1_loss, mse_loss

from shoal.core.errors import UserError
from shoal.core.task import Learnt, RowLoss, cross_entropy_rows, positions
from shoal.core.types import TARGET_WORDS, Target


def weighted_rows(weights: Tensor) -> RowLoss:
    """Cross-entropy of each row times the weight of its class."""

    def rows(logits: Tensor, labels: Tensor) -> Tensor:
        own = torch.nn.functional.embedding(labels, weights.to(logits.dtype).unsqueeze(-1))
        return cross_entropy_rows(logits, labels) * own.squeeze(-1)

    return rows


# ---- which loss ----------------------------------------------------------------------------------
NAMES = ("cross_entropy", "bce", "mse", "mae", "huber")
FITTING: dict[Target, tuple[str, ...]] = {  # the first is the default
    "class": ("cross_entropy",),
    "multi_label": ("bce",),
    "number": ("mse", "mae", "huber"),
    "dense": ("cross_entropy",),
    "token": ("cross_entropy",),
}


def fitting(name: str | None, target: Target) -> str:
    """The loss itself, or (None) the one that fits the target; others are refused."""
    right = FITTING[target]
    if name is None or name in right:
        return name or right[0]
    raise UserError(
        f"loss: {name} does not fit y, which is {TARGET_WORDS[target]} (target: {target}); write "
        f"{' or '.join(right)}, or a function of your own as module:function"
    )


def outputs_shape(target: Target, outputs: int, y: Tensor) -> tuple[int, ...]:
    """The shape of what a network gives for one row of ``y``."""
    if target == "dense":
        return (outputs, *y.shape[1:])
    return (*y.shape[1:], outputs) if target == "token" else (outputs,)


@lru_cache  # equal runs have the same loss, and so the same compiled steps
def entropy(
    target: Target, weights: Tensor | None, smoothing: float, ignored: int | None
) -> RowLoss:
    """Cross-entropy, with ``smoothing`` and ``weights`` as in ``torch.nn.CrossEntropyLoss``, but
    for the mean: it counts rows and not their weights."""
    if target == "class" and not smoothing and ignored is None:
        return cross_entropy_rows if weights is None else weighted_rows(weights)

    def rows(logits: Tensor, labels: Tensor) -> Tensor:
        if target == "dense":
            logits = logits.movedim(1, -1)
        safe = labels if ignored is None else torch.where(labels == ignored, 0, labels)
        shares = torch.log_softmax(logits, -1)
        own = -shares.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        if weights is not None:
            by_class = weights.to(logits.dtype)
            own = own * torch.nn.functional.embedding(safe, by_class.unsqueeze(-1)).squeeze(-1)
            shares = shares * by_class
        if smoothing:
            own = (1.0 - smoothing) * own - smoothing * shares.mean(-1)
        if ignored is None:
            return own.reshape(own.shape[0], -1).mean(-1) if own.dim() > 1 else own
        own = torch.where(labels == ignored, 0.0, own)
        return own.reshape(own.shape[0], -1).sum(-1) / positions(labels, ignored).clamp_min(1)

    return rows


@lru_cache
def several_labels(weights: Tensor | None) -> RowLoss:
    """Mean over labels of the binary cross-entropy; ``weights`` multiply that of labels that are 1
    (torch's ``pos_weight``)."""

    def rows(logits: Tensor, labels: Tensor) -> Tensor:
        own = None if weights is None else weights.to(logits.dtype)
        labels = labels.to(logits.dtype)
        return binary_cross_entropy_with_logits(
            logits, labels, reduction="none", pos_weight=own
        ).mean(-1)

    return rows


@lru_cache
def of_numbers(name: str, delta: float = 1.0) -> RowLoss:
    """Mean over columns of the squared, absolute or Huber error."""
    settings: dict[str, Any] = {"reduction": "none"} | ({"delta": delta} if name == "huber" else {})
    error: Any = {"mse": mse_loss, "mae": l1_loss, "huber": huber_loss}[name]

    def rows(outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = error(outputs, like_outputs(targets, outputs), **settings)
        return found.reshape(found.shape[0], -1).mean(-1)

    return rows


def like_outputs(targets: Tensor, outputs: Tensor) -> Tensor:
    """A column for one number per row, so that nothing is broadcast."""
    targets = targets.to(outputs.dtype)
    return targets.unsqueeze(-1) if targets.dim() < outputs.dim() else targets


# ---- a loss of the user's ------------------------------------------------------------------------
def own_loss(
    name: str, function: Callable[..., Any], options: Mapping[str, Any], outputs: Tensor, y: Tensor
) -> RowLoss:
    """``function(outputs, targets, **options)`` as one number per row, tried on what is given.

    A function that gives a single number, the mean over rows as torch's losses do, is asked row by
    row, and refused where that is another number: where rows are padded, there is no other way to
    tell what a row adds.
    """

    def called(outputs: Tensor, targets: Tensor) -> Any:
        # one number per row: the column that a network gives is no column in y
        lone = targets.is_floating_point() and outputs.dim() == targets.dim() + 1
        return function(outputs.squeeze(-1) if lone else outputs, targets, **options)

    def per_row(outputs: Tensor, targets: Tensor) -> Tensor:
        one: Callable[..., Any] = lambda o, t: called(o.unsqueeze(0), t.unsqueeze(0))  # noqa: E731
        found: Tensor = torch.func.vmap(one)(outputs, targets)
        return found

    outputs = outputs.detach().requires_grad_()
    what = f"loss: {name} must make one number per row (or their mean) of outputs of shape " \
           f"{tuple(outputs.shape)} and targets of shape {tuple(y.shape)}"  # fmt: skip
    found = _tried(called, outputs, y, what)
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape not in ((), (len(y),)):
        raise UserError(f"{what}, and returns {_told(found)}")
    if not found.requires_grad:
        raise UserError(f"{what}, and its result has no gradient, so nothing would be trained; "
                        f"leave out detach() and no_grad()")  # fmt: skip
    rows: RowLoss = called
    if shape != () and len(y) > 1:
        fewer = _tried(called, outputs[:-1], y[:-1], what)
        if fewer.shape != found[:-1].shape or not torch.allclose(fewer, found[:-1], 1e-4, 1e-6):
            raise UserError(
                f"loss: {name} gives a row another number when other rows are left out, so rows of "
                f"a batch are mixed; return one number per row, of that row alone"
            )
    elif shape == ():
        rows = per_row
        each = _tried(per_row, outputs, y, f"{what}; asked row by row it fails: return one per row")
        mean = each.mean()
        if tuple(each.shape) != (len(y),) or not _same(mean, found):
            raise UserError(
                f"loss: {name} gives {float(found.detach()):.6g} for {len(y)} rows, and on average "
                f"{float(mean.detach()):.6g} for each of them alone, so its rows do not count the "
                f"same; return one number per row"
            )
    if not bool(torch.isfinite(found).all()):
        raise UserError(f"loss: {name} is not finite on rows of the data")
    rows.__module__ = function.__module__  # whose code it is: steps of it are compiled anew
    return rows


def _tried(rows: Callable[..., Any], outputs: Tensor, y: Tensor, what: str) -> Any:
    try:
        return rows(outputs, y)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{what}, and does not ({reason})") from error


def _told(found: Any) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return f"{found!r}" if found is None else f"a {type(found).__name__}"


def _same(a: Tensor, b: Tensor) -> bool:
    one, other = float(a.detach()), float(b.detach())
    return abs(one - other) <= 1e-4 * max(1.0, abs(other))


# ---- what counts ---------------------------------------------------------------------------------
def hits(learnt: Learnt, logits: Tensor, labels: Tensor) -> Tensor | None:
    """How much of each row is right, from 0 to 1. Of numbers ``1 - error^2 / variance``, whose mean
    over rows is their R2 by the variance of training rows; None where that is not known."""
    target, ignored = learnt.target, learnt.ignored
    if not learnt.scored:
        return None
    if target == "number":
        errors = (like_outputs(labels, logits) - logits).square()
        return 1.0 - (errors / errors.new_tensor(learnt.variances)).mean(-1)
    if target == "multi_label":
        return ((logits > 0) == (labels > 0.5)).to(logits.dtype).mean(-1)
    right = logits.argmax(1 if target == "dense" else -1).eq(labels)
    if right.dim() == 1:
        return right
    if ignored is None:
        return right.reshape(right.shape[0], -1).to(logits.dtype).mean(-1)
    counted = positions(labels, ignored).clamp_min(1)
    return right.reshape(right.shape[0], -1).sum(-1).to(logits.dtype) / counted
