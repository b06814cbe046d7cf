"""The user's own data: ``data: {name: files, path: ..., x: ..., y: ..., client: ...}``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool, Target
from shoal.data import tables
from shoal.data.dataset import Dataset, source
from shoal.data.download import About
from shoal.data.file_formats import by_class, tree
from shoal.data.images import Look, RawSplit, Scale, dataset, split
from shoal.data.targets import Answers, answers

FILES = About("files", "your own arrays, CSV, Parquet or images", "as many as there are", None, ())


@source("files", FILES)
def files(
    *,
    path: str,
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] = "y",
    client: str | None = None,
    regression: bool = False,
    target: Target | None = None,
    classes: int | None = None,
    tokens: bool | None = None,
    test: float | str = 0.2,
    size: int | None = None,
    scale: Scale = "unit",
    seed: int = 0,
) -> Dataset:
    """A file of columns, or a folder of images with one folder a class.

    Parameters
    ----------
    path: .npz, .npy, .csv, .csv.gz, .parquet, or a folder of images.
    x: a column, a list of columns, a prefix such as ``pixel*``, or left out: ``x`` if there is
        such a column, otherwise all others. Bytes of more than one axis become [0, 1].
    y: the column of the answers, or a list of columns; classes are numbered in sorted order of
        their names.
    client: the column that says whose row it is: the natural partition.
    regression: the answers are numbers; the same as ``target: number``.
    target: what y is: class, multi_label (columns of 0 and 1), number, dense (a class per pixel) or
        token (a class per position); left out: as y looks, and a note says what it was taken for.
    classes: how many there are; left out: as many as y has. Give it where y also has labels that
        count for nothing (``loss.ignore_index``), or not every class.
    tokens: whether x is token numbers, which stay whole; left out: true of whole numbers in an
        array of rows of at least two.
    test: the share of rows (of each class) that is for testing, or a column that is true there.
    size, scale: for images, see ``shoal.data.images``.
    """
    where = Path(path).expanduser()
    if not where.exists():
        raise UserError(f"data: there is no file or folder {path}.")
    if where.is_dir():
        return _images(where, client, _share(test), size, scale, seed)
    columns = tables.read(where)
    named = [y] if isinstance(y, str) else list(y)
    columns_y = [(name, tables.column(columns, name, "y", where)) for name in named]
    taken = {*named, *([client] if client else []), *([test] if isinstance(test, str) else [])}
    owner = tables.column(columns, client, "client", where) if client else None
    if not columns_y:
        raise UserError(f"y of data set 'files' names no column; {where} has {', '.join(columns)}.")
    if not len(columns_y[0][1]):
        raise UserError(f"{where} has names of columns ({', '.join(columns)}) and no rows.")
    if regression and target not in (None, "number"):
        raise UserError(f"target of data set 'files' is {target!r}, and regression: true says that "
                        f"y is numbers; leave one of the two out.")  # fmt: skip
    inputs: NDArray[Any] | None = tables.token_numbers(columns, x, tokens, where)
    words = inputs is not None
    if inputs is None:
        inputs = tables.features(columns, x, taken, where)
    tables.same_length(columns, {*taken, *([x] if isinstance(x, str) else [])}, where)
    learnt = answers(columns_y, "number" if regression else target, classes, str(where))
    if isinstance(test, str):
        chosen = tables.column(columns, test, "test", where).astype(bool)
    else:
        chosen = _chosen(learnt.strata, _share(test), seed)
    group = None if owner is None or client is None else tables.codes(owner, client, where)
    found = _tables(where.name, inputs, learnt, group, chosen)
    if not words:
        return found
    most = int(inputs.max(initial=0)) + 1
    if learnt.target == "token":  # what is read and what is said are the same tokens
        most = max(most, learnt.classes or 0)
        found = found._replace(classes=classes or most)
    return found._replace(vocabulary=most)


def _share(test: object) -> float:
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0.0 < test < 1.0:
        raise UserError(f"test of data set 'files' is {test!r}; it must be a share above 0 and "
                        f"below 1, or the name of a column.")  # fmt: skip
    return float(test)


def _chosen(label: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    test = np.zeros(len(label), dtype=bool)
    for value in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == value))
        test[rows[: round(share * len(rows))]] = True
    return test


def _tables(
    name: str,
    x: NDArray[Any],
    learnt: Answers,
    group: NDArray[np.int64] | None,
    test: NDArray[np.bool_],
) -> Dataset:
    y = learnt.y
    if test.all() or not test.any():
        raise UserError(f"{name} leaves no rows for {'training' if test.all() else 'testing'}.")
    pools = [Pool(torch.from_numpy(x[m]), torch.from_numpy(y[m])) for m in (~test, test)]
    owners = [None if group is None else torch.from_numpy(group[m]) for m in (~test, test)]
    unknown: list[int] = []
    if learnt.target == "class":
        unknown = np.setdiff1d(y[test], y[~test]).tolist()
    if unknown:
        code = unknown[0]
        told = repr(learnt.names[code] if learnt.names else code)
        row = int(np.flatnonzero(test & (y == code))[0]) + 1
        raise UserError(f"{name} has class {told} in test row {row} and in no training row, so it "
                        f"cannot be learnt; leave such rows out.")  # fmt: skip
    return Dataset(
        "files", pools[0], pools[1], learnt.classes, tuple(x.shape[1:]), owners[0], owners[1],
        target=learnt.target, notes=(learnt.note,) if learnt.note else (),
    )  # fmt: skip


def _images(
    path: Path, client: str | None, share: float, size: int | None, scale: Scale, seed: int
) -> Dataset:
    """``class/*.png``, or ``client/class/*.png`` when a client is asked for (its name is free)."""
    with tree(path) as (names, read):
        if not names:
            raise UserError(f"{path} has no images; put them into one folder a class.")
        classes = sorted({PurePosixPath(n).parent.name for n in names})
        part = by_class(names, read, [c.lower() for c in classes], size)
    if client is not None:
        owners = np.array([PurePosixPath(n).parts[0] for n in names])
        part = RawSplit(part.x, part.y, tables.codes(owners, client, path))
    train, test = split(part, share, seed)
    return dataset("files", train, test, len(classes), Look(size, None, scale))
