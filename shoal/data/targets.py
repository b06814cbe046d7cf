"""What is to be learnt of each row: read from columns, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError, suggestion
from shoal.core.types import TARGET_WORDS, TARGETS, Target

Array = NDArray[Any]


class Answers(NamedTuple):
    """``y`` of all rows. ``names`` are those of the classes in order of their numbers, where they
    have some; ``note`` says what y was taken for where nothing was said."""

    y: Array
    target: Target
    classes: int | None
    names: tuple[Any, ...] = ()
    note: str = ""

    @property
    def strata(self) -> NDArray[np.int64]:
        """What a split into training and test rows keeps the shares of."""
        return self.y if self.target == "class" else np.zeros(len(self.y), np.int64)


def answers(
    named: Sequence[tuple[str, Array]], target: str | None, classes: int | None, place: str
) -> Answers:
    """The answers in one or several columns; ``target`` is looked up in them where it is None.

    One column of names or whole numbers is a class, of other numbers a number; several columns (or
    two axes) of 0 and 1 are labels, of whole numbers tokens, else numbers; three axes of whole
    numbers a class per pixel.
    """
    name, values = named[0]
    for other, column in named:
        _complete(other, column, place)
    if len(named) > 1:
        name = ", ".join(other for other, _ in named)
        flat = [c for _, c in named if c.ndim > 1]
        if flat:
            raise UserError(
                f"y of {place} is {name}, of which one has several axes; name it alone."
            )
        values = np.column_stack([_numbers(n, c, place) for n, c in named])
    if target is not None and target not in TARGETS:
        raise UserError(f"target of data set 'files' is {target!r}; {suggestion(target, TARGETS)}.")
    found = _looks_like(values)
    kind: Target = found if target is None else target
    _check_axes(kind, values, name, place)
    if classes is not None and kind == "number":
        raise UserError(f"classes of data set 'files' is {classes!r}, and y of {place} is numbers; "
                        f"leave it out.")  # fmt: skip
    note = ""
    if target is None and kind != "class":
        note = f"data: y ({name}) is read as {TARGET_WORDS[kind]} (target: {kind})"
    if kind == "class" and classes is None:
        names, codes = np.unique(values, return_inverse=True)
        return Answers(codes.reshape(-1).astype(np.int64), kind, len(names), tuple(names.tolist()))
    real = _numbers(name, values, place)
    if kind == "number":
        return Answers(real.astype(np.float32), kind, None, note=note)
    if kind == "multi_label":
        if not _is_01(real):
            raise UserError(f"y ({name}) of {place} has values other than 0 and 1, so it is no set "
                            f"of labels; write target: number.")  # fmt: skip
        return Answers(real.astype(np.float32), kind, real.shape[1], note=note)
    if not _is_whole(real):
        raise UserError(f"y ({name}) of {place} has values that are no whole numbers, so it is no "
                        f"class per row, pixel or position; write target: number.")  # fmt: skip
    whole = real.astype(np.int64)
    return Answers(whole, kind, classes or int(whole.max(initial=0)) + 1, note=note)


AXES: dict[Target, tuple[int, ...]] = {
    "class": (1,), "multi_label": (2,), "number": (1, 2), "dense": (3,), "token": (2,)}  # fmt: skip


def _looks_like(values: Array) -> Target:
    numbers = values.dtype.kind in "fiub"
    if values.ndim == 1:
        return "number" if values.dtype.kind == "f" and not _is_whole(values) else "class"
    if values.ndim == 2 and numbers and _is_01(values):
        return "multi_label"
    if values.dtype.kind in "iu":
        return "dense" if values.ndim == 3 else "token"
    return "number"


def _check_axes(kind: Target, values: Array, name: str, place: str) -> None:
    if values.ndim not in AXES[kind] or 0 in values.shape[1:]:
        many = " or ".join(str(n - 1) for n in AXES[kind])
        raise UserError(f"y ({name}) of {place} has shape {values.shape[1:]} per row, and {kind} "
                        f"has {many} axes per row (class: a single value).")  # fmt: skip


def _complete(name: str, values: Array, place: str) -> None:
    """Refuse an answer that is missing, with its row counted from 1."""
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            bad = np.isnan(values.reshape(len(values), -1).sum(1) * 0.0)
    elif values.dtype.kind == "O" and values.ndim == 1:
        bad = np.array([v is None or v != v for v in values.tolist()], bool)
    else:
        return
    if bad.any():
        such = f" ({int(bad.sum()):,} such rows)" if bad.sum() > 1 else ""
        raise UserError(
            f"column {name!r} of {place} has no value in row {int(bad.nonzero()[0][0]) + 1}{such}, "
            f"and it is what is to be learnt; leave such rows out."
        )


def _numbers(name: str, values: Array, place: str) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"column {name!r} of {place} is not made of numbers ({error}); leave it "
                        f"out of y, or write target: class.") from None  # fmt: skip


def _is_01(values: Array) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _is_whole(values: Array) -> bool:
    return bool((values == np.round(values)).all())


# ---- checks of a data set ------------------------------------------------------------------------
def check_targets(name: str, part: str, y: Tensor, target: Target, classes: int | None) -> None:
    """Refuse a ``y`` that is not what the data say; labels below 0 may count for nothing (the loss
    says so)."""
    if not len(y):
        return
    integral = target in ("class", "dense", "token")
    wrong = ""
    if y.dim() not in AXES[target]:
        wrong = f"has shape {tuple(y.shape)}"
    elif integral == y.is_floating_point() or (integral and y.dtype == torch.bool):
        wrong = f"is made of {str(y.dtype)[6:]}"
    elif target == "multi_label" and not bool(((y == 0) | (y == 1)).all()):
        wrong = "has values other than 0 and 1"
    elif target == "multi_label" and y.size(1) != classes:
        wrong = f"has {y.size(1)} labels per row, and the data say {classes}"
    if wrong:
        raise UserError(f"y of the {part} rows of data set {name!r} {wrong}, which does not fit "
                        f"target {target!r} ({TARGET_WORDS[target]}).")  # fmt: skip
