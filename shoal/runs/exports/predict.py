"""Answers of a run's model for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.files import write_text
from shoal.data import tables
from shoal.runs.exports.trained import TrainedModel

AT_ONCE = 1024  # rows
SHOWN = 100  # classes that have a column of probabilities each


def rows_of(trained: TrainedModel, path: Path) -> Tensor:
    """The inputs in a file, as the run's data have them."""
    if not path.exists():
        raise UserError(f"there is no file {path}")
    columns = tables.read(path)
    config, shape = trained.plan.config, trained.task.shape or ()
    own = config.data.options if config.data.name == "files" else {}
    taken = {own.get(key) for key in ("y", "client", "test")} | {"y"}
    if not all(len(values) for values in columns.values()):
        raise UserError(f"{path} has no rows to answer")
    x = tables.features(columns, own.get("x"), {n for n in taken if n in columns}, path)
    if int(np.prod(x.shape[1:])) != int(np.prod(shape)):
        raise UserError(
            f"{path} has rows of {int(np.prod(x.shape[1:]))} numbers, and the model was trained on "
            f"rows of {int(np.prod(shape))} (shape {tuple(shape)}); leave out columns that are no "
            f"inputs"
        )
    found, like = torch.from_numpy(x).reshape(len(x), *shape), trained.rows(1)
    if like.is_floating_point():
        return found.to(like.dtype)
    if not torch.equal(found, found.round()):
        raise UserError(f"{path} has fractions, and the model was trained on whole numbers")
    return found.to(like.dtype)


def answers(trained: TrainedModel, x: Tensor) -> dict[str, list[Any]]:
    """Columns by name: the answer of every row, and the probabilities of classes."""
    device = trained.model.theta.device
    parts = [trained.outputs(some.to(device)) for some in torch.split(x, AT_ONCE)]
    logits = torch.cat(parts).double()
    if trained.task.classes is None:
        wide = logits.reshape(len(logits), -1)
        names = ["prediction"] if wide.shape[1] == 1 else [f"y{i}" for i in range(wide.shape[1])]
        return {name: wide[:, i].tolist() for i, name in enumerate(names)}
    shares, names = torch.softmax(logits, -1), class_names(trained)
    best = shares.argmax(-1).tolist()
    found = {
        "prediction": [names[i] for i in best],
        "probability": shares.max(-1).values.tolist(),
    }
    if len(names) <= SHOWN:
        found |= {f"p_{name}": shares[:, i].tolist() for i, name in enumerate(names)}
    return found


def class_names(trained: TrainedModel) -> list[str]:
    """As the user's own file has them, else their numbers."""
    config, count = trained.plan.config, trained.task.classes or 0
    if config.data.name == "files":
        options = config.data.options
        where = Path(str(options["path"]))
        if where.is_file():
            column = tables.column(tables.read(where), options.get("y", "y"), "y", where)
            known = [str(name) for name in np.unique(column).tolist()]
            if len(known) == count:
                return known
    return [str(number) for number in range(count)]


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
    columns = answers(trained, rows_of(trained, path))
    text = "\n".join(as_csv(columns)) + "\n"
    if out is None:
        return text
    try:
        write_text(out, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error})") from None
    return f"{out}: {len(columns['prediction' if 'prediction' in columns else 'y0'])} rows\n"
