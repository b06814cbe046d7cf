"""A member's rows before they are prepared, and what it tells of them: sums, and what is no sum."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError
from shoal.data import tables
from shoal.data.columns import MOST, as_texts, dates, part_of
from shoal.data.later_rows import later_answers, later_inputs
from shoal.data.tables import Table
from shoal.data.text import words
from shoal.flower.data_form import ColumnForm, DataForm
from shoal.flower.node.own_data import NodeData, check_answers, divided, held_out
from shoal.flower.preparation import LETTERS, WORDS


class MemberFigures(NamedTuple):
    """What one member sends."""

    sums: list[Fraction]
    found: dict[str, Any]


@dataclass(frozen=True)
class UnpreparedRows:
    """A table as a member has it, its answers, and which of its rows are held out."""

    table: Table
    y: Tensor
    held: NDArray[np.bool_]

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows to train on, and to judge models with."""
        return int((~self.held).sum()), int(self.held.sum())

    def figures(self, form: DataForm) -> MemberFigures:
        keep = torch.from_numpy(~self.held)
        return figures_of(form, self.table, ~self.held, self.y[keep])

    def prepared(self, form: DataForm) -> NodeData:
        """The rows as all members' figures prepare them."""
        assert form.table is not None
        name = next((c.column for c in form.table.columns if c.kind == "tokens"), None)
        length = {"text": {"column": name, "length": form.shape[0]}} if name else {}
        data = form.dataset()._replace(options=tuple(length.items()))
        return divided(later_inputs(data, self.table), self.y, self.held, form, self.table.where)


def unprepared(path: Path, form: DataForm) -> UnpreparedRows:
    """Read and check a table, before anything is known of others' rows."""
    assert form.table is not None
    if path.is_dir():
        raise UserError(f"--data: {path} is a folder, and the federation learns of tables")
    return unprepared_table(tables.read(path, form.table.missing), form)


def unprepared_table(table: Table, form: DataForm) -> UnpreparedRows:
    assert form.table is not None
    if not table.rows:
        raise UserError(f"{table.where} has no rows; a member needs at least one")
    for column in form.table.columns:
        table.check(column.column, "the federation's inputs")
    options: dict[str, Any] = {"y": list(form.table.y)}
    y = later_answers(form.dataset()._replace(options=tuple(options.items())), table)
    check_answers(y, form, table.where)
    found = UnpreparedRows(table, y, held_out(y))
    found.figures(form)  # whatever cannot be told is refused before the member joins
    return found


def figures_of(form: DataForm, table: Table | None, train: Any, y: Tensor) -> MemberFigures:
    """What a member sends: of its training rows, marked in ``train``, with the answers ``y``."""
    sums: list[Fraction] = []
    found: dict[str, Any] = {}
    if form.table is not None and table is not None:
        for column in form.table.columns:
            own = _found(column, table, train, form.table.extremes)
            sums += own.sums
            found |= own.found
    if form.target == "number":
        for answers in y.double().reshape(len(y), -1).numpy().T:
            sums += _moments(answers)
    else:
        sums += [Fraction(n) for n in _by_class(form, y)]
    return MemberFigures(sums, found)


def _by_class(form: DataForm, y: Tensor) -> list[int]:
    if form.target == "multi_label":
        return [int(n) for n in y.sum(0).tolist()]
    inside = y[(y >= 0) & (y < (form.classes or 0))]
    return [int(n) for n in torch.bincount(inside, minlength=form.classes or 0).tolist()]


def _moments(values: NDArray[np.float64]) -> list[Fraction]:
    """Count, sum and sum of squares; of the deviations first, which loses no digits."""
    known = values[~np.isnan(values)]
    if not len(known):
        return [Fraction(0)] * 3
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(known.mean())
        square = float(np.square(known - mean).sum())
    if not (math.isfinite(mean) and math.isfinite(square)):
        raise UserError("a column has a value that is infinite, or too large to be added up")
    count, exact = len(known), Fraction(mean)
    return [Fraction(count), count * exact, Fraction(square) + count * exact * exact]


def _found(column: ColumnForm, table: Table, train: Any, extremes: list[str]) -> MemberFigures:
    values = table.column(column.column)[train]
    if column.numbers:
        real = _real(column, values, table.where)
        sums = [s for one in real.T for s in _moments(one)]
        ends = {
            name: [float(np.nanmin(one)), float(np.nanmax(one))]
            for name, one in zip(column.numbers, real.T, strict=True)
            if name in extremes and not np.isnan(one).all()
        }
        return MemberFigures(sums, ends)
    if column.listed:
        if column.values is not None:
            return MemberFigures([], {})
        own = _values(column, values, table.where)
        if len(own) > MOST or any(len(value) > LETTERS for value in own):
            raise UserError(f"column {column.column!r} of {table.where} has {len(own):,} different "
                            f"values (at most {MOST}, of {LETTERS} letters)")  # fmt: skip
        return MemberFigures([], {column.asked: own})
    counts, having = Counter[str](), Counter[str]()
    for text in as_texts(values, ""):
        found = words(text)
        counts.update(found)
        having.update(set(found))
    if len(counts) > WORDS or any(len(word) > LETTERS for word in counts):
        raise UserError(f"column {column.column!r} of {table.where} has {len(counts):,} different "
                        f"words (at most {WORDS:,}, of {LETTERS} letters)")  # fmt: skip
    return MemberFigures(
        [], {column.column: [[w, n, having[w]] for w, n in sorted(counts.items())]}
    )


def _real(column: ColumnForm, values: Any, where: str) -> NDArray[np.float64]:
    """Numbers, one column each; days since 1970 of dates."""
    if column.kind == "date":
        found = dates(values, column.column, column.format, where)
        days = found.astype(np.int64) / 86400.0
        return np.where(np.isnat(found), np.nan, days)[:, None]
    if values.dtype == object:
        values = np.array([np.nan if v is None else v for v in values.tolist()])
    if values.dtype.kind not in "iufb" or values.ndim > 2:
        raise UserError(f"column {column.column!r} of {where} is not made of numbers, as the "
                        "federation's is")  # fmt: skip
    return np.asarray(values, np.float64).reshape(len(values), max(1, column.width))


def _values(column: ColumnForm, values: Any, where: str) -> list[str]:
    if column.kind == "category":
        return sorted(set(as_texts(values).tolist()))
    known = dates(values, column.column, column.format, where)
    return [str(n) for n in np.unique(part_of(known[~np.isnat(known)], column.part))]
