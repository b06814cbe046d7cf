"""The user's own data: ``data: {name: files, path: ..., x: ..., y: ..., client: ...}``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data import tables
from shoal.data.dataset import Dataset, source
from shoal.data.download import About
from shoal.data.file_formats import by_class, tree
from shoal.data.images import Look, RawSplit, Scale, dataset, split
from shoal.data.time_column import TimeColumn

FILES = About("files", "your own arrays, CSV, Parquet or images", "as many as there are", None, ())


@source("files", FILES)
def files(
    *,
    path: str,
    x: str | Sequence[str] | None = None,
    y: str = "y",
    client: str | None = None,
    regression: bool = False,
    test: float | str = 0.2,
    size: int | None = None,
    scale: Scale = "unit",
    seed: int = 0,
    calendar: str | None = None,
) -> Dataset:
    """A file of columns, or a folder of images with one folder a class.

    Parameters
    ----------
    path: .npz, .npy, .csv, .csv.gz, .parquet, or a folder of images.
    x: a column, a list of columns, a prefix such as ``pixel*``, or left out: ``x`` if there is
        such a column, otherwise all others. Bytes of more than one axis become [0, 1].
    y: the column of the answers; classes are numbered in sorted order of their names.
    client: the column that says whose row it is: the natural partition.
    regression: the answers are numbers, not classes.
    test: the share of rows (of each class) that is for testing, or a column that is true there.
    size, scale: for images, see ``shoal.data.images``.
    calendar: the column of a dated world (``world.column``), which is no input.
    """
    where = Path(path).expanduser()
    if not where.exists():
        raise UserError(f"data: there is no file or folder {path}.")
    if where.is_dir():
        if calendar is not None:
            raise UserError(f"world.column is {calendar!r}, but {path} is a folder of images, "
                            "which say nothing of time; take a table instead.")  # fmt: skip
        return _images(where, client, _share(test), size, scale, seed)
    columns = tables.read(where)
    answers = tables.column(columns, y, "y", where)
    beside = (client, calendar, test if isinstance(test, str) else None)
    taken = {y, *(name for name in beside if name)}
    owner = tables.column(columns, client, "client", where) if client else None
    if not len(answers):
        raise UserError(f"{where} has names of columns ({', '.join(columns)}) and no rows.")
    inputs = tables.features(columns, x, taken, where)
    strata = np.zeros(len(inputs), np.int64) if regression else tables.codes(answers, y, where)
    label: NDArray[Any] = tables.features(columns, y, set(), where) if regression else strata
    if isinstance(test, str):
        chosen = tables.column(columns, test, "test", where).astype(bool)
    else:
        chosen = _chosen(strata, _share(test), seed)
    group = None if owner is None or client is None else tables.codes(owner, client, where)
    made = _tables(where.name, inputs, label, group, chosen, regression)
    if owner is not None:
        made = made._replace(names=tuple(str(name) for name in np.unique(owner)))
    if calendar is not None:
        values = tables.column(columns, calendar, "the calendar (world.column)", where)
        made = made._replace(times=TimeColumn.cut(calendar, values, chosen, where))
    return made


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
    x: NDArray[np.float32],
    y: NDArray[Any],
    group: NDArray[np.int64] | None,
    test: NDArray[np.bool_],
    regression: bool,
) -> Dataset:
    if test.all() or not test.any():
        raise UserError(f"{name} leaves no rows for {'training' if test.all() else 'testing'}.")
    pools = [Pool(torch.from_numpy(x[m]), torch.from_numpy(y[m])) for m in (~test, test)]
    owners = [None if group is None else torch.from_numpy(group[m]) for m in (~test, test)]
    classes = None if regression else int(y.max()) + 1
    return Dataset("files", pools[0], pools[1], classes, x.shape[1:], owners[0], owners[1])


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
    made = dataset("files", train, test, len(classes), Look(size, None, scale))
    return made if client is None else made._replace(names=tuple(np.unique(owners).tolist()))
