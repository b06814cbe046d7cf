"""Data that a program holds: data frames, arrays, tensors, data sets of torch and Hugging Face.

``shoal.run(data=...)`` takes them as they are, or with options as ``{"table": frame, "y": "ill"}``.
Frames are read as files are (columns of numbers are normalised); arrays and tensors stay as they
are, but for bytes of images, which become [0, 1]. No library is imported that is not there already.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError, suggestion
from shoal.core.own_code import called
from shoal.core.types import Input, Pool, joined_inputs
from shoal.data import tables
from shoal.data.dataset import Dataset, checked, function
from shoal.data.sources.own_files import (
    ColumnRules,
    TargetRules,
    listed,
    of_table,
    share_of,
    stratified,
)
from shoal.data.targets import Answers, answers
from shoal.data.time_column import Calendar

OF_ROWS = ("client", "test", "seed", "calendar")
OF_TARGET = TargetRules._fields
OF_COLUMNS = ColumnRules._fields
OF_ARRAYS = ("target", "classes", "test", "seed")


def dataset_of(given: Any, calendar: Calendar | None = None) -> Dataset:
    """The data set that an object is; ``calendar`` is that of a dated world."""
    if isinstance(given, Dataset):
        return checked(given)
    options: dict[str, Any] = {}
    if isinstance(given, Mapping) and "table" in given:
        options = {key: value for key, value in given.items() if key != "table"}
        given = given["table"]
    frame = _frame(given)
    if frame is not None:
        table, marked = frame
        if calendar is not None:
            options["calendar"] = calendar
        return checked(_of_frame(table, {**marked, **options}))
    return checked(_of_arrays(_parts(given), options))


def load_own(name: str, options: Mapping[str, Any]) -> Dataset:
    """What the user's ``module:function`` makes: a :class:`Dataset`, or anything that is one."""
    made = called("data", name, function(name), object, **options)
    try:
        return dataset_of(made)._replace(name=name, options=tuple(options.items()))
    except UserError as error:
        raise UserError(f"data: what {name!r} makes is no data set: {error}") from None


def as_config(data: Dataset, given: Any) -> dict[str, Any]:
    """What a config says of it."""
    inner = given["table"] if isinstance(given, Mapping) and "table" in given else given
    rows = len(data.train.y) + len(data.test.y)
    return {"name": "memory", "rows": rows, "kind": type(inner).__name__}


# ---- frames --------------------------------------------------------------------------------------
PICTURES = ("Image", "Array2D", "Array3D")  # features of Hugging Face's
SPLIT = "(test)"  # the column that says which part of several a row is of


def _frame(given: Any) -> tuple[tables.Table, dict[str, Any]] | None:
    """A frame as a table, and the options that it brings; None for anything else."""
    import pyarrow as pa

    name = f"the {type(given).__name__}"
    if isinstance(given, Mapping) and given and all(map(_hugging, given.values())):
        return _joined(given, name)
    try:
        if type(given).__module__.partition(".")[0] == "pandas":
            return tables.of_arrow(pa.Table.from_pandas(given, preserve_index=False), name), {}
        if _hugging(given):
            return _of_hugging(given, name), {}
        lazy = getattr(given, "collect", None)
        given = lazy() if callable(lazy) else given
        if isinstance(given, pa.Table) or hasattr(given, "__arrow_c_stream__"):
            return tables.of_arrow(pa.table(given), name), {}
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"{name} cannot be read ({' '.join(str(error).split())}).") from None
    return None


def _hugging(given: Any) -> bool:
    return all(hasattr(given, name) for name in ("with_format", "column_names", "__len__"))


def _of_hugging(given: Any, name: str) -> tables.Table:
    """A data set of Hugging Face's; pictures become arrays of channels, rows, columns."""
    features = getattr(given, "features", None) or {}
    arrays = [n for n, kind in features.items() if type(kind).__name__ in PICTURES]
    rest = [n for n in given.column_names if n not in arrays]
    plain = given.select_columns(rest) if arrays else given
    table = tables.of_arrow(plain.with_format("arrow")[:], name)
    if not arrays:
        return table
    columns = {n: table.column(n) for n in rest}
    for n in arrays:
        values = np.array([np.asarray(row[n]) for row in given.with_format(None).select_columns(n)])
        if type(features[n]).__name__ == "Image":
            values = values[:, None] if values.ndim == 3 else np.moveaxis(values, -1, 1)
        columns[n] = values
    return tables.of_arrays({n: columns[n] for n in given.column_names}, name)


def _joined(parts: Mapping[str, Any], name: str) -> tuple[tables.Table, dict[str, Any]]:
    """Training and test part of a dictionary of data sets in one table."""
    test = next((key for key in ("test", "validation") if key in parts), None)
    if "train" not in parts or test is None:
        raise UserError(f"{name} has {', '.join(parts)}; it needs train, and test or validation.")
    read = [_of_hugging(parts[key], name) for key in ("train", test)]
    if read[0].kinds != read[1].kinds:
        raise UserError(f"{name}: the columns of train and {test} differ.")
    columns = {n: np.concatenate([t.column(n) for t in read]) for n in read[0].names}
    columns[SPLIT] = np.repeat([False, True], [t.rows for t in read])
    return tables.of_arrays(columns, name), {"test": SPLIT}


def _of_frame(table: tables.Table, options: Mapping[str, Any]) -> Dataset:
    known = [*OF_ROWS, *OF_TARGET, *OF_COLUMNS]
    for key in options:
        if key not in known:
            raise UserError(f"data has no option {key!r}; {suggestion(key, known)}.")
    rules = {key: value for key, value in options.items() if key in OF_COLUMNS}
    for key in ("category", "leave_out"):
        rules[key] = listed(rules.get(key, ()))
    rows = {key: value for key, value in options.items() if key in OF_ROWS}
    kind = {key: value for key, value in options.items() if key in OF_TARGET}
    if "y" not in kind and "y" not in table.names:
        others = ", ".join(name for name in table.names if name != SPLIT)
        raise UserError(f"{table.where} has no column 'y'; say which one holds the answers with "
                        f"data={{'table': ..., 'y': NAME}}; it has {others}.")  # fmt: skip
    return of_table(table, ColumnRules(**rules), TargetRules(**kind), **rows)


# ---- arrays and tensors --------------------------------------------------------------------------
class _Given(NamedTuple):
    """Rows and answers; several inputs stand side by side."""

    x: Tensor
    y: Tensor
    inputs: tuple[Input, ...] = ()


def _parts(given: Any) -> list[_Given]:
    """One pair (all rows) or two (training and test rows)."""
    if isinstance(given, tuple | list):
        if len(given) == 4:
            return [_pair(given[:2]), _pair(given[2:])]
        if len(given) == 2 and any(isinstance(part, tuple) or _rows(part) for part in given):
            return [_pair(part) for part in given]
    return [_pair(given)]


def _rows(given: Any) -> bool:
    """Whether it is a data set of torch's kind."""
    return isinstance(given, torch.utils.data.Dataset)


def _pair(given: Any) -> _Given:
    tensors = getattr(given, "tensors", None)
    if tensors is None and _rows(given):
        if not hasattr(given, "__len__") or inspect.isgenerator(given):
            raise _unknown(given, "a torch data set needs a length (map style)")
        rows = [given[i] for i in range(len(given))]
        if not rows or not all(isinstance(r, tuple | list) and len(r) == 2 for r in rows):
            raise _unknown(given, "every item of a torch data set must be a pair (x, y)")
        try:
            tensors = tuple(torch.stack([torch.as_tensor(r[i]) for r in rows]) for i in (0, 1))
        except (RuntimeError, TypeError, ValueError) as error:
            raise _unknown(given, f"its items make no tensors ({error})") from None
    found = given if tensors is None else tensors
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise _unknown(given, "")
    if isinstance(found[0], Mapping):
        each = {name: _pair((x, found[1])) for name, x in found[0].items()}
        if not each:
            raise _unknown(given, "it has no inputs")
        joined, inputs = joined_inputs({name: _inputs(part.x) for name, part in each.items()})
        return _Given(joined, next(iter(each.values())).y, inputs)
    try:
        x, y = (torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in found)
    except (TypeError, ValueError) as error:
        raise _unknown(given, str(error)) from None
    if not x.dim() or not y.dim() or len(x) != len(y) or not len(y):
        raise UserError(f"data: x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they need "
                        f"equally many rows, and at least one.")  # fmt: skip
    return _Given(x.detach(), y.detach())


def _unknown(given: Any, why: str) -> UserError:
    more = f" ({' '.join(why.split())})" if why else ""
    return UserError(
        f"data cannot be a {type(given).__name__}{more}; it must be a name, a mapping, a data "
        f"frame, (x, y), (x, y, x_test, y_test), ({{name: x}}, y) for a network of several inputs, "
        f"a torch data set, or a shoal Dataset."
    )


def _of_arrays(parts: list[_Given], options: Mapping[str, Any]) -> Dataset:
    for key in options:
        if key not in OF_ARRAYS:
            raise UserError(f"data: arrays have no option {key!r}; {suggestion(key, OF_ARRAYS)}.")
    said = options.get("target"), options.get("classes")
    learnt, labels = _labels([part.y for part in parts], *said)
    xs, inputs = [_inputs(part.x) for part in parts], parts[0].inputs
    if any(part.inputs != inputs for part in parts):
        raise UserError("data: training and test rows have other inputs.")
    if len(xs) == 1:
        share = share_of(options.get("test", 0.2))
        held = torch.from_numpy(stratified(learnt.strata, share, int(options.get("seed", 0))))
        xs, labels = ([v[0][~held], v[0][held]] for v in (xs, labels))
        if not len(labels[0]) or not len(labels[1]):
            raise UserError("data: there are too few rows to train and to test on.")
    elif xs[0].shape[1:] != xs[1].shape[1:]:
        raise UserError(f"data: training rows have shape {tuple(xs[0].shape[1:])} and test rows "
                        f"{tuple(xs[1].shape[1:])}.")  # fmt: skip
    train, test = (Pool(x, y) for x, y in zip(xs, labels, strict=True))
    strange = ~torch.isin(test.y, train.y) if learnt.target == "class" else torch.zeros(0)
    if strange.any():
        row = int(strange.nonzero()[0])
        raise UserError(
            f"data: y has the class {int(test.y[row])} in test row {row + 1}, and in no training "
            f"row, so it cannot be learnt; leave such rows out."
        )
    tokens = None
    if not train.x.is_floating_point():
        tokens = int(max(train.x.max(), test.x.max())) + 1
    shape = tuple(train.x.shape[1:])
    classes, notes = learnt.classes, (learnt.note,) if learnt.note else ()
    if learnt.target == "token" and tokens is not None:
        tokens = max(tokens, classes or 0)  # what is read and what is said are the same tokens
        classes = said[1] or tokens
    return Dataset("memory", train, test, classes, shape, vocabulary=tokens, target=learnt.target,
                   notes=notes, inputs=inputs)  # fmt: skip


def _inputs(x: Tensor) -> Tensor:
    """Numbers as float32, bytes of images as [0, 1], token numbers as whole numbers."""
    if x.dtype == torch.uint8 and x.dim() > 2:
        return x.float() / 255.0
    if x.is_complex():
        raise UserError("data: x has complex numbers; give it real ones.")
    return x.float() if x.is_floating_point() or x.dtype == torch.bool else x.long()


def _labels(
    given: list[Tensor], target: str | None, classes: int | None
) -> tuple[Answers, list[Tensor]]:
    """What the answers are. One per row, whole numbers are classes by their number, and floating
    ones are numbers, as they are for torch's losses."""
    y = torch.cat(given)
    if y.dim() == 1 and y.is_floating_point() and target is None:
        target = "number"
    elif y.dim() == 1 and not y.is_floating_point() and target in (None, "class"):
        if int(y.min()) < 0:
            raise UserError(f"data: y has the class {int(y.min())}; classes are numbered from 0.")
        classes = classes or int(y.max()) + 1
    learnt = answers([("y", y.numpy())], target, classes, "the arrays")
    return learnt, list(torch.split(torch.from_numpy(learnt.y), [len(part) for part in given]))
