"""The form that everybody's rows must have: what members agree to, and models are built for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError, suggestion
from shoal.core.types import TARGETS, Input, Pool, Target
from shoal.data.columns import (
    NORMALIZE,
    PARTS,
    Categories,
    ColumnEncoder,
    DateParts,
    Elapsed,
    Numbers,
    Prepared,
    WordCounts,
)
from shoal.data.dataset import Dataset, Elsewhere
from shoal.data.sources.own_files import listed
from shoal.data.targets import AXES
from shoal.data.text import Vocabulary

KEYS = {"shape", "classes", "names", "vocabulary", "target", "answer", "inputs", "table"}
WHOLE: tuple[Target, ...] = ("class", "dense", "token")  # answers are numbers of classes


# ---- columns that are prepared -------------------------------------------------------------------
class ColumnForm(NamedTuple):
    """What becomes of a column (:mod:`shoal.data.columns`): a ``number`` (``width`` of them, where
    it holds lists), ``category``, ``date`` (the ``part`` of it), ``words`` (counts) or ``tokens``.
    ``values`` of a category or a part of a date may be agreed to; else members are asked."""

    column: str
    kind: str
    width: int = 0
    part: str = ""
    format: str | None = None
    vocabulary: int = 0
    length: int = 0
    values: tuple[str, ...] | None = None

    @property
    def asked(self) -> str:
        """What it is called where members are asked for it."""
        return f"{self.column} {self.part}".strip()

    @property
    def numbers(self) -> list[str]:
        """Names of the inputs that have a scale of their own."""
        if self.kind == "number":
            return [f"{self.column}{i}" for i in range(self.width)] if self.width else [self.column]
        return [self.asked] if self.part == "elapsed" else []

    @property
    def listed(self) -> bool:
        """Whether it is made of a few values, each with an input of its own."""
        return self.kind == "category" or (self.kind == "date" and self.part != "elapsed")


@dataclass(frozen=True)
class TableForm:
    """Rows of a table, as members have them in files of their own. Means, deviations, values and
    words are those of all members' training rows: each is asked once, before the first round."""

    y: tuple[str, ...]
    columns: tuple[ColumnForm, ...]
    normalize: str = "standard"
    missing: tuple[str, ...] = ()
    scale_y: bool = False

    @property
    def numbers(self) -> list[str]:
        return [name for column in self.columns for name in column.numbers]

    @property
    def extremes(self) -> list[str]:
        """Inputs whose smallest and largest value are asked for."""
        every = [n for c in self.columns for n in c.numbers if c.part == "elapsed"]
        return self.numbers if self.normalize == "minmax" else every

    @property
    def why_sums_are_not_enough(self) -> str:
        """What is asked for that is no sum; empty if all of it is one."""
        for column in self.columns:
            if column.listed and column.values is None:
                return f"which values column {column.asked!r} has (write them as its values)"
            if column.kind in ("words", "tokens"):
                return f"which words column {column.column!r} has"
        if self.extremes:
            return f"the smallest and largest value of {self.extremes[0]!r}"
        return ""

    def told(self) -> str:
        """What a member will tell, for its owner."""
        said = []
        if self.numbers:
            said.append(f"counts, sums and sums of squares of {', '.join(self.numbers)}")
        if self.extremes:
            said.append(f"smallest and largest values of {', '.join(self.extremes)}")
        if listed := [c.asked for c in self.columns if c.listed and c.values is None]:
            said.append(f"the values of {', '.join(listed)}")
        if words := [c.column for c in self.columns if c.kind in ("words", "tokens")]:
            said.append(f"the words of {', '.join(words)} and how often they come")
        return "; ".join(said)

    def plain(self) -> dict[str, Any]:
        columns = []
        for one in self.columns:
            given = zip(one._fields, one, ColumnForm("", "")._replace(kind=""), strict=True)
            columns.append({name: value for name, value, default in given if value != default})
        return {
            "y": list(self.y),
            "columns": [{k: _listed(v) for k, v in one.items()} for one in columns],
            "normalize": self.normalize,
            "missing": list(self.missing),
            "scale_y": self.scale_y,
        }


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _texts(values: Any) -> bool:
    fine = isinstance(values, Sequence) and not isinstance(values, str)
    return fine and all(isinstance(v, str) for v in values)


def _table(values: Any, path: Path) -> TableForm:
    known = {"y", "columns", "normalize", "missing", "scale_y"}
    fine = isinstance(values, Mapping) and {"y", "columns"} <= set(values) <= known
    fine = fine and _texts(values["y"]) and _texts(values.get("missing", []))
    fine = fine and bool(values["y"]) and bool(values["columns"])
    fine = fine and isinstance(values["columns"], list)
    fine = fine and isinstance(values.get("scale_y", False), bool)
    if not fine or values.get("normalize", "standard") not in NORMALIZE:
        raise UserError(f"{path}: expects.table needs y and columns, and may have normalize, "
                        "missing and scale_y")  # fmt: skip
    return TableForm(
        tuple(values["y"]),
        tuple(_column(one, path) for one in values["columns"]),
        values.get("normalize", "standard"),
        tuple(values.get("missing", ())),
        values.get("scale_y", False),
    )


_KINDS = ("number", "category", "date", "words", "tokens")


def _column(values: Any, path: Path) -> ColumnForm:
    fine = isinstance(values, Mapping) and {"column", "kind"} <= set(values)
    fine = fine and set(values) <= set(ColumnForm._fields) and values["kind"] in _KINDS
    for key, kind in (("column", str), ("part", str), ("format", str), ("width", int),
                      ("vocabulary", int), ("length", int)):  # fmt: skip
        fine = fine and (key not in values or type(values[key]) is kind)
    fine = fine and (values.get("values") is None or _texts(values["values"]))
    fine = fine and (values["kind"] != "date" or values.get("part") in PARTS)
    fine = fine and (values["kind"] not in ("words", "tokens") or values.get("vocabulary", 0) > 2)
    if not fine:
        raise UserError(f"{path}: expects.table.columns has {values!r}, which is no column with "
                        f"its kind ({', '.join(_KINDS)}) and settings")  # fmt: skip
    stated = values.get("values")
    return ColumnForm(**{**values, "values": None if stated is None else tuple(stated)})


def _columns(data: Dataset, options: Mapping[str, Any]) -> tuple[ColumnForm, ...]:
    """What becomes of each column of a table that was read."""
    text = options.get("text")
    text = {"column": text} if isinstance(text, str) else dict(text or {})
    if data.columns is None:
        size, length = int(text.get("vocabulary", 10_000)), int(text.get("length", 64))
        return (ColumnForm(text["column"], "tokens", vocabulary=size, length=length),)
    found = [_column_of(encoder, text) for encoder in data.columns.encoders]
    wide = options.get("x", "x")
    if isinstance(wide, str) and [c.column for c in found] == [
        f"{wide}{i}" for i in range(len(found))
    ]:  # an array with several numbers per row
        return (ColumnForm(wide, "number", width=len(found)),)
    return tuple(found)


def _column_of(encoder: ColumnEncoder, text: Mapping[str, Any]) -> ColumnForm:
    name = encoder.column
    if isinstance(encoder, Categories):
        return ColumnForm(name, "category")
    if isinstance(encoder, DateParts):
        return ColumnForm(name, "date", part=encoder.part, format=encoder.form)
    if isinstance(encoder, Elapsed):
        return ColumnForm(name, "date", part="elapsed", format=encoder.form)
    if isinstance(encoder, WordCounts):
        return ColumnForm(name, "words", vocabulary=int(text.get("vocabulary", 2000)))
    return ColumnForm(name, "number")


# ---- the form ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DataForm:
    """The form of a row and of its answer.

    ``names`` are those of the classes where answers are texts. ``answer`` is the shape of what is
    to be learnt of a row, and ``inputs`` takes several inputs apart that stand side by side.
    ``ignored`` is the label that counts for nothing, which the config's loss says. ``unit``,
    ``learnt``, ``columns`` and ``known`` are what members' sums have told; where there is a
    ``table``, shape and vocabulary are too.
    """

    shape: tuple[int, ...]
    classes: int | None
    names: tuple[str, ...] = ()
    vocabulary: int | None = None
    target: Target = "class"
    answer: tuple[int, ...] = ()
    inputs: tuple[Input, ...] = ()
    table: TableForm | None = None
    ignored: int | None = field(default=None, compare=False)
    unit: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    learnt: Elsewhere = field(default=Elsewhere(), compare=False)
    columns: Prepared | None = field(default=None, compare=False)
    known: Vocabulary | None = field(default=None, compare=False)

    @classmethod
    def of(cls, data: Dataset) -> DataForm:
        """The form of a data set."""
        answer = tuple(data.train.y.shape[1:])
        return cls(data.shape, data.classes, (), data.vocabulary, data.target, answer, data.inputs)

    @classmethod
    def of_table(cls, data: Dataset) -> DataForm | None:
        """The form of rows of a user's table, where something of them is to be prepared."""
        if data.name != "files" or (data.columns is None and data.known is None):
            return None
        options = dict(data.options)
        normalize = options.get("normalize") or "standard"
        plain = data.columns is not None and all(
            isinstance(e, Numbers) for e in data.columns.encoders
        )
        if plain and normalize == "none" and not (data.columns and data.columns.missing):
            return None
        table = TableForm(
            tuple(listed(options.get("y", "y"))),
            _columns(data, options),
            normalize,
            tuple(listed(options.get("missing", ()))),
            bool(data.unit),
        )
        learnt = Elsewhere(rows=len(data.train.y))  # the author's own, to try what can fail
        return replace(
            cls.of(data), names=data.class_names, table=table, unit=data.unit, learnt=learnt,
            columns=data.columns, known=data.known,
        )  # fmt: skip

    @property
    def answers_kind(self) -> torch.dtype:
        return torch.int64 if self.target in WHOLE else torch.float32

    def told(self) -> str:
        """What members tell of their rows before the first round, for their owners."""
        columns = [self.table.told()] if self.table is not None else []
        if self.target == "number":
            return "; ".join([*columns, "count, sum and sum of squares of the answers"])
        return "; ".join([*columns, "how many rows each class has"])

    def rows(self, x: Tensor, y: Tensor) -> Dataset:
        """A data set of this form with these rows."""
        pool = Pool(x, y)
        return Dataset(
            "expected", pool, pool, self.classes, self.shape, vocabulary=self.vocabulary,
            target=self.target, unit=self.unit, inputs=self.inputs, elsewhere=self.learnt,
            columns=self.columns, known=self.known, class_names=self.names,
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
        classes = {"classes": self.classes, "names": list(self.names)}
        if self.table is not None:  # what it is like follows from members' rows
            return {**classes, **more, "table": self.table.plain()}
        # in version 0.1's order, since digests are of the text
        return {"shape": list(self.shape), **classes, "vocabulary": self.vocabulary, **more}


def form_from(values: Any, path: Path) -> DataForm:
    """The form in an agreement; whatever is not one is refused."""
    known = isinstance(values, Mapping) and "classes" in values and set(values) <= KEYS
    if not known or ("shape" in values) == (values.get("table") is not None):
        raise UserError(f"{path}: expects needs shape and classes (or classes and a table), and "
                        "may have names, vocabulary, target, answer and inputs")  # fmt: skip
    target = values.get("target", "class")
    if target not in TARGETS:
        raise UserError(f"{path}: expects.target is {target!r}; {suggestion(str(target), TARGETS)}")
    table = None if "shape" in values else _table(values["table"], path)
    shape, classes = (1,) if table else _shape(values["shape"]), values["classes"]
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
    own = shape if table is None else ()
    return DataForm(own, classes, names, vocabulary, target, answer, inputs, table)


def _shape(values: Any) -> tuple[int, ...] | None:
    whole = isinstance(values, Sequence) and not isinstance(values, str)
    if not whole or not all(type(n) is int and n > 0 for n in values):
        return None
    return tuple(values)


def _inputs(values: Any, path: Path) -> tuple[Input, ...]:
    found = []
    every: Sequence[Any] = values if isinstance(values, Sequence) else [None]
    for one in every:
        fine = isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 3
        shape = _shape(one[1]) if fine else None
        if shape is None or not isinstance(one[0], str) or not isinstance(one[2], bool):
            raise UserError(f"{path}: expects.inputs must be a list of [name, shape, whole]")
        found.append(Input(one[0], shape, one[2]))
    return tuple(found)
