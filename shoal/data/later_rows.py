"""Rows of another file, read as those of a table that was trained on: the same columns, the same
numbers for classes, means and words of the old training rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import UserError
from shoal.data import tables
from shoal.data.dataset import Dataset, checked
from shoal.data.sources.own_files import ColumnRules, TargetRules, listed, of_table
from shoal.data.tables import Table

ROW, FRESH = "(row)", "(later)"  # columns of our own; a file's have other names


def later_rows(options: Mapping[str, Any], path: Path, calendar: str | None = None) -> Dataset:
    """The rows of ``path`` as test rows, beside the training rows of the table that ``options`` of
    data set ``files`` say; ``calendar`` is the column of a dated world."""
    if not path.exists():
        raise UserError(f"--data: there is no file {path}")
    missing = listed(options.get("missing", ()))
    old = tables.read(Path(options["path"]).expanduser(), missing)
    new = tables.read(path, missing)
    rules = ColumnRules(**{k: v for k, v in options.items() if k in ColumnRules._fields})
    rules = rules._replace(category=listed(rules.category), leave_out=listed(rules.leave_out))
    client, test = options.get("client"), options.get("test", 0.2)
    kind = TargetRules(**{k: v for k, v in options.items() if k in TargetRules._fields})
    spare = {client, test, calendar, *rules.leave_out}  # what new rows need not have
    numbered = _with(old, ROW, np.arange(old.rows, dtype=np.float64))
    plain = rules._replace(leave_out=[n for n in (*rules.leave_out, calendar) if n])
    first = of_table(numbered, plain, kind, client, test, options.get("seed", 0), ROW)
    assert first.times is not None
    both = _joined(new, old, first.times.train.astype(np.int64), spare)
    client, calendar = (name if name in both.kinds else None for name in (client, calendar))
    kind = kind._replace(target=first.target)  # whatever the new answers look like
    return checked(of_table(both, rules, kind, client, FRESH, calendar=calendar))


def _with(table: Table, name: str, values: Any) -> Table:
    columns = {other: table.column(other) for other in table.names}
    return tables.of_arrays({**columns, name: values}, table.where)


def _joined(new: Table, old: Table, rows: Any, spare: set[Any]) -> Table:
    """The new rows, then the old training rows; a column says which are which."""
    columns = {}
    for name in old.names:
        if name not in new.kinds:
            if name in spare:
                continue
            raise UserError(f"{new.where} has no column {name!r}, which {old.where} has; it has "
                            f"{', '.join(new.names)}.")  # fmt: skip
        kinds = (new.kinds[name], old.kinds[name])
        if kinds[0] != kinds[1] and "empty" not in kinds and name not in spare:
            raise UserError(f"column {name!r} of {new.where} is of kind {kinds[0]}, and in "
                            f"{old.where} of kind {kinds[1]}; write both alike.")  # fmt: skip
        columns[name] = np.concatenate([new.column(name), old.column(name)[rows]])
    fresh = np.arange(new.rows + len(rows)) < new.rows
    return tables.of_arrays({**columns, FRESH: fresh}, new.where)
