"""Answers of a run's model for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.config.subject import dataset_of
from shoal.core.errors import UserError
from shoal.core.files import write_text
from shoal.data import tables
from shoal.data.later_rows import later_inputs, later_table
from shoal.data.sources import Dataset
from shoal.data.tables import Table
from shoal.runs.exports.trained import TrainedModel

AT_ONCE = 1024  # rows
SHOWN = 100  # classes that have a column of probabilities each


def rows_of(trained: TrainedModel, data: Dataset, path: Path) -> Tensor:
    """The inputs in a file, prepared as the run's own rows were."""
    if not path.exists():
        raise UserError(f"there is no file {path}")
    shape = tuple(trained.task.shape or ())
    table = later_table(data, path)
    like = trained.rows(1)
    path_of_run = dict(data.options).get("path")
    of_file = data.name == "files" and path_of_run and not Path(path_of_run).expanduser().is_dir()
    if of_file or data.columns is not None:
        found = later_inputs(data, table)
    else:
        found = torch.from_numpy(_as_they_are(table, shape))
    if tuple(found.shape[1:]) != shape:
        found = found.reshape(len(found), *shape)
    if not like.is_floating_point() and not torch.equal(found, found.round()):
        raise UserError(f"{path} has fractions, and the model was trained on whole numbers")
    return found.to(like.dtype)


def _as_they_are(table: Table, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array ``x``, or all columns of numbers in their order."""
    names = ["x"] if "x" in table.names else [n for n in table.names if n != "y"]
    wrong = [name for name in names if table.kinds[name] not in ("number", "list")]
    if wrong:
        raise UserError(f"column {wrong[0]!r} of {table.where} is not made of numbers")
    x = np.column_stack(
        [np.asarray(table.column(n), np.float32).reshape(table.rows, -1) for n in names]
    )
    if x.shape[1] != int(np.prod(shape)):
        raise UserError(
            f"{table.where} has rows of {x.shape[1]} numbers, and the model was trained on rows of "
            f"{int(np.prod(shape))} (shape {shape}); leave out columns that are no inputs"
        )
    if not np.isfinite(x).all():
        row = tables.row_of(~np.isfinite(x).all(1))
        raise UserError(f"{table.where} has a value that is missing, NaN or infinite in row {row}")
    return x


def answers(trained: TrainedModel, data: Dataset, x: Tensor) -> dict[str, list[Any]]:
    """Columns by name: the answer of every row, and the probabilities of classes or labels."""
    device = trained.model.theta.device
    parts = [trained.outputs(some.to(device)) for some in torch.split(x, AT_ONCE)]
    logits = torch.cat(parts).double()
    if trained.task.target in ("token", "dense"):
        found = logits.argmax(1 if trained.task.target == "dense" else -1).flatten(1)
        return {"prediction": [" ".join(map(str, row)) for row in found.tolist()]}
    wide = logits.reshape(len(logits), -1)
    numbers = [str(number) for number in range(wide.shape[1])]
    asked = trained.plan.config.data.options.get("y")
    known = list(data.class_names) or (list(asked) if isinstance(asked, list | tuple) else [])
    names = known if len(known) == len(numbers) else numbers
    if trained.task.target == "number":
        titles = ["prediction"] if len(names) == 1 else list(names)
        return {title: wide[:, i].tolist() for i, title in enumerate(titles)}
    several = trained.task.target == "multi_label"
    shares = torch.sigmoid(wide) if several else torch.softmax(wide, -1)
    if several:
        on = (shares > 0.5).tolist()
        said = [";".join(n for n, there in zip(names, row, strict=True) if there) for row in on]
        columns: dict[str, list[Any]] = {"prediction": said}
    else:
        best = [names[i] for i in shares.argmax(-1).tolist()]
        columns = {"prediction": best, "probability": shares.max(-1).values.tolist()}
    if len(names) <= SHOWN:
        columns |= {f"p_{name}": shares[:, i].tolist() for i, name in enumerate(names)}
    return columns


def as_csv(columns: dict[str, list[Any]]) -> Iterator[str]:
    """Lines of a CSV file."""
    yield ",".join(map(_quoted, columns))
    for row in zip(*columns.values(), strict=True):
        yield ",".join(f"{v:.6g}" if isinstance(v, float) else _quoted(v) for v in row)


def _quoted(value: object) -> str:
    text = str(value)
    plain = not any(sign in text for sign in ',"\n\r')
    return text if plain else '"' + text.replace('"', '""') + '"'


def predict(trained: TrainedModel, path: Path, out: Path | None) -> str:
    """Answer the rows of a file; the lines, or a sentence on the file that they were written to."""
    data = dataset_of(trained.plan.config)
    columns = answers(trained, data, rows_of(trained, data, path))
    text = "\n".join(as_csv(columns)) + "\n"
    if out is None:
        return text
    try:
        write_text(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    return f"{out}: {len(next(iter(columns.values())))} rows\n"
