"""Rows of another file, read as those of a table that was trained on: the same columns, the same
numbers for classes, means and words of the run's own training rows. ``shoal predict`` and ``shoal
evaluate --data`` read them here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data import tables
from shoal.data.columns import Numbers, Prepared, as_texts
from shoal.data.dataset import Dataset, checked
from shoal.data.sources.own_files import (
    ColumnRules,
    TargetRules,
    held_rows,
    inputs,
    listed,
)
from shoal.data.tables import Array, Table
from shoal.data.time_column import column_of


def later_table(data: Dataset, path: Path) -> Table:
    """A file that has rows; ``data`` say which of its texts stand for no value."""
    table = tables.read(path, listed(dict(data.options).get("missing", ())))
    if not table.rows:
        raise UserError(f"{path} has no rows")
    return table


def later_rows(data: Dataset, table: Table) -> Dataset:
    """``data`` of set ``files``, with the rows of a table in place of its test rows."""
    options = dict(data.options)
    client = options.get("client")
    test = Pool(later_inputs(data, table), later_answers(data, table))
    found = data._replace(test=test, group=None, test_group=None, names=None)
    if client is not None and client in table.kinds:
        group, names = tables.codes(table.column(client), client, table.where)
        texts = tuple(as_texts(np.array(names)).tolist())
        found = found._replace(test_group=torch.from_numpy(group), names=texts)
    return checked(found)


def as_written(data: Dataset, rows: Tensor) -> dict[str, Array]:
    """Training rows of set ``files`` by column, as they stand in their file: before anything was
    prepared."""
    options = dict(data.options)
    table = tables.read(Path(options["path"]).expanduser(), listed(options.get("missing", ())))
    rules = TargetRules(**{k: v for k, v in options.items() if k in TargetRules._fields})
    split = {k: options[k] for k in ("test", "seed") if k in options}
    places = np.flatnonzero(~held_rows(table, rules.answers(table), **split))[rows.numpy()]
    beside = {options.get("client"), options.get("test")}
    return {name: table.column(name)[places] for name in table.names if name not in beside}


def later_inputs(data: Dataset, table: Table) -> Tensor:
    """What the network sees of a table's rows."""
    options = dict(data.options)
    if data.columns is not None:
        return torch.from_numpy(data.columns.apply(_with_columns(table, data.columns)))
    if data.known is not None:
        text = options["text"]
        name, length = (text, 64) if isinstance(text, str) else (text["column"], text.get("length"))
        texts = as_texts(table.given(name, "the model's inputs"), "").tolist()
        return torch.from_numpy(data.known.encode(texts, int(length or 64)))
    rules = ColumnRules(**{k: v for k, v in options.items() if k in ColumnRules._fields})
    rules = rules._replace(category=listed(rules.category), leave_out=[])
    when = options.get("calendar")
    beside = (options.get("client"), options.get("test"), when and column_of(when))
    taken = {*listed(options.get("y", "y")), *(n for n in beside if isinstance(n, str)),
             *listed(options.get("leave_out", ()))}  # fmt: skip
    return inputs(table, rules, taken, np.ones(table.rows, dtype=bool), []).test


def later_answers(data: Dataset, table: Table) -> Tensor:
    """The answers of a table's rows, by the numbers that the run's classes have."""
    options = dict(data.options)
    rules = TargetRules(**{k: v for k, v in options.items() if k in TargetRules._fields})
    if data.target != "class" or not data.class_names:
        rules = rules._replace(target=data.target, regression=False)
        if data.target in ("class", "dense", "token"):
            rules = rules._replace(classes=data.classes)
        return torch.from_numpy(rules.answers(table).y)
    name = listed(rules.y)[0]
    codes, values = tables.codes(table.given(name, "y"), name, table.where)
    exact = {known: place for place, known in enumerate(data.class_names)}
    by_value = {float(k): place for k, place in exact.items() if tables.is_number(k)}
    found = [exact.get(str(v), by_value.get(v, -1)) for v in values]  # 1 and 1.0 are the same
    places = np.array(found, dtype=np.int64)[codes]
    if (places < 0).any():
        row = tables.row_of(places < 0)
        value = values[codes[row - 1]]
        known = ", ".join(data.class_names[:10])
        raise UserError(f"column {name!r} of {table.where} has the class {value!r} in row {row}, "
                        f"which the run's rows do not have; they have {known}.")  # fmt: skip
    return torch.from_numpy(places)


def _with_columns(table: Table, made: Prepared) -> Table:
    """The table with every column that the run's rows were made of; an array's are its own."""
    wanted = [encoder.column for encoder in made.encoders]
    lists = [name for name, kind in table.kinds.items() if kind == "list"]
    if len(lists) == 1 and lists[0] not in wanted:
        values = np.asarray(table.column(lists[0]))
        flat = {f"{lists[0]}{i}": values[:, i] for i in range(values.shape[1])}
        table = tables.of_arrays(flat, table.where)
    for encoder in made.encoders:
        kind = table.kinds[table.check(encoder.column, "the model's inputs")]
        if isinstance(encoder, Numbers) and kind not in ("number", "empty"):
            raise _no_number(table, encoder.column)
    return table


def _no_number(table: Table, name: str) -> UserError:
    texts = as_texts(table.column(name), "").tolist()
    bad = [text != "" and not tables.is_number(text) for text in texts]
    row = tables.row_of(bad) if any(bad) else 1
    return UserError(f"column {name!r} of {table.where} has {texts[row - 1]!r} in row {row}, which "
                     f"is {table.kinds[name]} and no number as in the run's rows; correct it, or "
                     f"leave the cell empty.")  # fmt: skip
