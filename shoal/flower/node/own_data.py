"""A node's own data: read on the node, checked on the node, never described to the server but by
its number of rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.types import TARGET_WORDS, ClientData, Pool
from shoal.data import tables
from shoal.data.columns import Numbers
from shoal.data.file_formats import by_class, tree
from shoal.data.images import Look, dataset
from shoal.data.sources.own_files import ColumnRules, Columns, inputs, listed, stratified
from shoal.data.tables import Table
from shoal.data.targets import answers
from shoal.flower.data_form import WHOLE, DataForm

SHARE = 0.2  # of the rows that is kept for validation, where the user gives no set for it


class NodeData(NamedTuple):
    """What a node trains on, and what it judges models with."""

    train: ClientData
    validation: ClientData | None


def from_path(path: Path, expects: DataForm, *, x: str | None = None, y: Columns = "y") -> NodeData:
    """An array, CSV, Parquet or a folder of images with one folder a class."""
    if not path.exists():
        raise UserError(f"--data: there is no file or folder {path}")
    if path.is_dir():
        if expects.target != "class":
            raise UserError(f"--data: {path} is a folder with one folder per class, and the "
                            f"federation learns {TARGET_WORDS[expects.target]}")  # fmt: skip
        inputs, labels = _images(path, expects)
    else:
        table = tables.read(path)
        given = [table.given(name, "y") for name in listed(y)]
        if not len(given[0]):
            raise UserError(f"{path} has no rows; a member needs at least one")
        inputs = _numbers(table, expects, x, listed(y))
        labels = _labels(given[0] if len(given) == 1 else np.stack(given, 1), expects, str(path))
    return _split(inputs, labels, expects, str(path))


def _numbers(table: Table, expects: DataForm, x: str | None, y: Sequence[str]) -> Tensor:
    """Inputs as they stand in the file. Other columns than numbers, and rows without a value, would
    need what only all members together know."""
    notes: list[str] = []
    rules = ColumnRules(x, "none", tokens=True if expects.vocabulary else None)
    made = inputs(table, rules, set(y), np.zeros(table.rows, dtype=bool), notes)
    if notes:
        raise UserError(
            f"{notes[0]}, which a member of a federation cannot know; complete the file"
        )
    for encoder in made.prepared.encoders if made.prepared else ():
        if not isinstance(encoder, Numbers):
            raise UserError(f"column {encoder.column!r} of {table.where} is not made of numbers, "
                            "and other members do not know what it is made of; make numbers of "
                            "it, or leave it out of the file")  # fmt: skip
    return made.train


def from_loader(spec: str, expects: DataForm) -> NodeData:
    """``module:function`` that returns a training and a validation set, each a pair ``(x, y)``.

    The validation set may be None: then a share of the training rows is kept for it.
    """
    found = _function(spec)()
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError(f"--loader {spec} must return a pair (train, validation)")
    train, validation = found
    inputs, labels = _pair(train, expects, f"{spec} (train)")
    if validation is None:
        return _split(inputs, labels, expects, spec)
    held = _pair(validation, expects, f"{spec} (validation)")
    return NodeData(_data(inputs, labels, expects, spec), _data(*held, expects, spec))


def _function(spec: str) -> Callable[[], Any]:
    module, _, name = spec.partition(":")
    if not module or not name:
        raise UserError(f"--loader {spec} must be module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--loader {spec} cannot be loaded ({error})") from None
    if not callable(found):
        raise UserError(f"--loader {spec} is no function")
    function: Callable[[], Any] = found
    return function


def _pair(pair: Any, expects: DataForm, where: str) -> tuple[Tensor, Tensor]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise UserError(f"{where} must be a pair (x, y) of arrays")
    x = torch.as_tensor(np.asarray(pair[0]))
    x = x.long() if expects.vocabulary and not x.is_floating_point() else x.float()
    return x, _labels(np.asarray(pair[1]), expects, where)


def _labels(values: NDArray[Any], expects: DataForm, where: str) -> Tensor:
    """Answers of the agreed kind; those that may be something else are refused."""
    if expects.target == "class":
        return _classes(values, expects, where)
    if values.ndim == 2 and values.shape[1] == 1 and expects.answer == ():
        values = values[:, 0]
    if expects.target in ("dense", "token") and values.dtype.kind == "f":
        values = np.where(values == values // 1, values, np.nan).astype(np.float64)
    y = torch.from_numpy(answers([("y", values)], expects.target, expects.classes, where).y)
    check_answers(y, expects, where)
    return y


def check_answers(y: Tensor, expects: DataForm, where: str) -> None:
    """Refuse answers that are not of the agreed form."""
    if tuple(y.shape[1:]) != expects.answer:
        raise UserError(f"{where} has answers of shape {tuple(y.shape[1:])}; the federation "
                        f"expects {expects.answer}")  # fmt: skip
    if expects.target in WHOLE:
        _check_range(y, expects, where)
    elif not bool(torch.isfinite(y).all()):
        raise UserError(f"{where} has an answer that is not finite")


def _check_range(labels: Tensor, expects: DataForm, where: str) -> None:
    """Labels are classes, but for the one that counts for nothing."""
    counted = labels if expects.ignored is None else labels[labels != expects.ignored]
    most = expects.classes or 0
    if counted.numel() and not (int(counted.min()) >= 0 and int(counted.max()) < most):
        raise UserError(f"{where} has labels from {int(counted.min())} to {int(counted.max())}; "
                        f"the federation expects 0 to {most - 1}")  # fmt: skip


def _classes(values: NDArray[Any], expects: DataForm, where: str) -> Tensor:
    """Labels as 0 .. classes - 1: the same numbers on every node, whichever classes it has."""
    if values.dtype.kind in "iub" or (values.dtype.kind == "f" and np.all(values == values // 1)):
        labels = torch.from_numpy(values.astype(np.int64))
        _check_range(labels, expects, where)
        return labels
    if not expects.names:
        raise UserError(f"{where} has labels that are no whole numbers, and the agreement gives no "
                        "names of classes (expects.names)")  # fmt: skip
    numbers = {name: index for index, name in enumerate(expects.names)}
    unknown = sorted({str(v) for v in values.tolist()} - set(numbers))
    if unknown:
        raise UserError(f"{where} has the label {unknown[0]!r}, which is none of the federation's "
                        f"classes: {', '.join(expects.names)}")  # fmt: skip
    return torch.tensor([numbers[str(v)] for v in values.tolist()], dtype=torch.int64)


def _images(path: Path, expects: DataForm) -> tuple[Tensor, Tensor]:
    size = expects.shape[-1] if len(expects.shape) > 1 else None
    with tree(path) as (names, read):
        if not names:
            raise UserError(f"{path} has no images; put them into one folder a class")
        folders = sorted({PurePosixPath(n).parent.name for n in names})
        classes = list(expects.names) or [str(n) for n in range(expects.classes or 0)]
        wrong = [f for f in folders if f.lower() not in {c.lower() for c in classes}]
        if wrong:
            raise UserError(f"{path} has a folder {wrong[0]!r}, which is none of the federation's "
                            f"classes: {', '.join(classes)}")  # fmt: skip
        part = by_class(names, read, [c.lower() for c in classes], size)
    channels = expects.shape[0] if len(expects.shape) == 3 else None
    look = Look(size, channels, "unit", flat=len(expects.shape) == 1)
    made = dataset("node", part, part, expects.classes or 0, look)
    return made.train.x, made.train.y


def _split(x: Tensor, y: Tensor, expects: DataForm, where: str) -> NodeData:
    """A share of every class is kept for validation; which rows depends on nothing but the data."""
    return divided(x, y, held_out(y), expects, where)


def divided(
    x: Tensor, y: Tensor, held: NDArray[np.bool_], expects: DataForm, where: str
) -> NodeData:
    """Rows to train on, and those that are held out."""
    keep = torch.from_numpy(~held)
    train = _data(x[keep], y[keep], expects, where)
    return NodeData(train, _data(x[~keep], y[~keep], expects, where) if held.any() else None)


def held_out(y: Tensor) -> NDArray[np.bool_]:
    """Rows for validation: a share of every class, or of all where there is no single class."""
    strata = y.numpy() if y.dim() == 1 and y.dtype == torch.int64 else np.zeros(len(y), np.int64)
    return stratified(strata - min(0, int(strata.min(initial=0))), SHARE, 0)


def _data(x: Tensor, y: Tensor, expects: DataForm, where: str) -> ClientData:
    """The last check before a node may join."""
    if len(x) != len(y) or not len(y):
        raise UserError(f"{where} has {len(x)} samples and {len(y)} labels; it needs equally many, "
                        "and at least one")  # fmt: skip
    if tuple(x.shape[1:]) != expects.shape:
        raise UserError(f"{where} has samples of shape {tuple(x.shape[1:])}; the federation "
                        f"expects {expects.shape}")  # fmt: skip
    if expects.vocabulary and not _tokens(x, expects.vocabulary):
        raise UserError(f"{where} has inputs that are no numbers of tokens; the federation "
                        f"expects 0 to {expects.vocabulary - 1}")  # fmt: skip
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x).reshape(len(x), -1).all(1)).nonzero()[0])
        raise UserError(f"{where} has a value that is not finite in row {row + 1}")
    return ClientData(Pool(x, y), torch.arange(len(y)), y, float(len(y)))


def _tokens(x: Tensor, vocabulary: int) -> bool:
    whole = not x.is_floating_point()
    return whole and (not x.numel() or 0 <= int(x.min()) <= int(x.max()) < vocabulary)
