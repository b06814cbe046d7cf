"""The form that everybody's rows must have: what members agree to, and what models are built for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import UserError, suggestion
from shoal.core.types import TARGETS, Input, Pool, Target
from shoal.data.dataset import Dataset, Elsewhere
from shoal.data.targets import AXES

KEYS = {"shape", "classes", "names", "vocabulary", "target", "answer", "inputs"}
WHOLE: tuple[Target, ...] = ("class", "dense", "token")  # answers are numbers of classes


@dataclass(frozen=True)
class DataForm:
    """The form of a row and of its answer.

    ``names`` are those of the classes where answers are texts. ``answer`` is the shape of what is
    to be learnt of a row, and ``inputs`` takes several inputs apart that stand side by side.
    ``ignored`` is the label that counts for nothing, which the config's loss says. ``learnt`` is
    what members' sums have told of their answers.
    """

    shape: tuple[int, ...]
    classes: int | None
    names: tuple[str, ...] = ()
    vocabulary: int | None = None
    target: Target = "class"
    answer: tuple[int, ...] = ()
    inputs: tuple[Input, ...] = ()
    ignored: int | None = field(default=None, compare=False)
    unit: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    learnt: Elsewhere = field(default=Elsewhere(), compare=False)

    @classmethod
    def of(cls, data: Dataset) -> DataForm:
        """The form of a data set."""
        answer = tuple(data.train.y.shape[1:])
        return cls(data.shape, data.classes, (), data.vocabulary, data.target, answer, data.inputs)

    @property
    def answers_kind(self) -> torch.dtype:
        return torch.int64 if self.target in WHOLE else torch.float32

    def rows(self, x: Tensor, y: Tensor) -> Dataset:
        """A data set of this form with these rows."""
        pool = Pool(x, y)
        return Dataset(
            "expected", pool, pool, self.classes, self.shape, vocabulary=self.vocabulary,
            target=self.target, unit=self.unit, inputs=self.inputs, elsewhere=self.learnt,
        )  # fmt: skip

    def dataset(self) -> Dataset:
        """A data set of this form without samples: enough to build a model for."""
        kind = torch.int64 if self.vocabulary else torch.float32
        x = torch.zeros(0, *self.shape, dtype=kind)
        return self.rows(x, torch.zeros(0, *self.answer, dtype=self.answers_kind))

    def made_up(self, count: int) -> tuple[Tensor, Tensor]:
        """Rows of this form that say nothing."""
        draw = torch.Generator().manual_seed(0)
        if self.vocabulary:
            x = torch.randint(self.vocabulary, (count, *self.shape), generator=draw)
        else:
            x = torch.rand((count, *self.shape), generator=draw)
        if self.target == "class":
            return x, torch.arange(count) % (self.classes or 1)
        shape = (count, *self.answer)
        if self.target in WHOLE:
            return x, torch.randint(self.classes or 1, shape, generator=draw)
        y = torch.rand(shape, generator=draw)
        return x, y.round() if self.target == "multi_label" else y

    def plain(self) -> dict[str, Any]:
        """As it stands in the agreement; what version 0.1 did not have only where it is not as
        it was then."""
        more: dict[str, Any] = {}
        if self.target != "class":
            more = {"target": self.target, "answer": list(self.answer)}
        if self.inputs:
            more["inputs"] = [[one.name, list(one.shape), one.whole] for one in self.inputs]
        return {
            "shape": list(self.shape),
            "classes": self.classes,
            "names": list(self.names),
            "vocabulary": self.vocabulary,
            **more,
        }


def form_from(values: Any, path: Path) -> DataForm:
    """The form in an agreement; whatever is not one is refused."""
    if not isinstance(values, Mapping) or not {"shape", "classes"} <= set(values) <= KEYS:
        raise UserError(f"{path}: expects needs shape and classes, and may have "
                        f"{', '.join(sorted(KEYS - {'shape', 'classes'}))}")  # fmt: skip
    target = values.get("target", "class")
    if target not in TARGETS:
        raise UserError(f"{path}: expects.target is {target!r}; {suggestion(str(target), TARGETS)}")
    shape, classes = _shape(values["shape"]), values["classes"]
    least = 1 if target == "multi_label" else 2
    counted = classes is None if target == "number" else type(classes) is int and classes >= least
    if shape is None or not shape or not counted:
        said = "left empty" if target == "number" else f"a whole number of at least {least}"
        raise UserError(f"{path}: expects.shape must be a list of whole numbers above 0, and "
                        f"expects.classes {said}")  # fmt: skip
    answer = _shape(values.get("answer") or ())
    if answer is None or len(answer) + 1 not in AXES[target]:
        raise UserError(f"{path}: expects.answer is {values.get('answer')!r}, which is no shape of "
                        f"an answer of target {target}")  # fmt: skip
    if target == "multi_label" and answer != (classes,):
        raise UserError(f"{path}: expects.answer is {list(answer)}, and expects.classes {classes}")
    names = tuple(str(name) for name in values.get("names") or ())
    if names and len(names) != classes:
        raise UserError(f"{path}: expects.names has {len(names)} names for {classes} classes")
    vocabulary = values.get("vocabulary")
    if vocabulary is not None and (type(vocabulary) is not int or vocabulary < 1):
        raise UserError(f"{path}: expects.vocabulary must be a whole number above 0")
    inputs = _inputs(values.get("inputs") or (), path)
    return DataForm(shape, classes, names, vocabulary, target, answer, inputs)


def _shape(values: Any) -> tuple[int, ...] | None:
    whole = isinstance(values, Sequence) and not isinstance(values, str)
    if not whole or not all(type(n) is int and n > 0 for n in values):
        return None
    return tuple(values)


def _inputs(values: Any, path: Path) -> tuple[Input, ...]:
    found = []
    for one in values if isinstance(values, Sequence) else [None]:
        fine = isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 3
        shape = _shape(one[1]) if fine else None
        if shape is None or not isinstance(one[0], str) or not isinstance(one[2], bool):
            raise UserError(f"{path}: expects.inputs must be a list of [name, shape, whole]")
        found.append(Input(one[0], shape, one[2]))
    return tuple(found)
