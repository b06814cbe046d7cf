"""Tables of the user's own: arrays, CSV and Parquet, as columns by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.files import check_room
from shoal.data.file_formats import npy, npz, opened

Columns = dict[str, NDArray[Any]]


def read(path: Path) -> Columns:
    """The columns of a file, by its ending: .npz, .npy, .csv(.gz) or .parquet."""
    name = path.name.lower()
    if name.endswith(".npz"):
        return npz(path)
    if name.endswith(".npy"):
        return {"x": npy(path)}
    if name.endswith((".csv", ".csv.gz")):
        from pyarrow import csv

        return _columns(path, lambda file: csv.read_csv(opened(file)))
    if name.endswith((".parquet", ".pq")):
        from pyarrow import parquet

        about = _columns_read(path, parquet.read_metadata)
        check_room(8 * about.num_rows * about.num_columns, path.stat().st_size, path)
        return _columns(path, parquet.read_table)
    raise UserError(
        f"{path} ends in none of .npz, .npy, .csv, .csv.gz, .parquet, and is no folder of images."
    )


def _columns(path: Path, reader: Any) -> Columns:
    table = _columns_read(path, reader)
    return {
        name: np.asarray(table.column(name).to_numpy(zero_copy_only=False))
        if table.schema.field(name).type.num_fields == 0
        else np.array(table.column(name).to_pylist())
        for name in table.column_names
    }


def _columns_read(path: Path, reader: Any) -> Any:
    from pyarrow import ArrowException

    try:
        return reader(path)
    except (ArrowException, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())}).") from None


def column(columns: Mapping[str, NDArray[Any]], name: str, key: str, path: Path) -> NDArray[Any]:
    """One column, or a complaint with the nearest name."""
    if name in columns:
        return columns[name]
    near = get_close_matches(name, list(columns), n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? it has" if near else "it has"
    raise UserError(f"{path} has no column {name!r} for {key}; {hint} {', '.join(columns)}.")


def features(
    columns: Columns, x: str | Sequence[str] | None, taken: set[str], path: Path
) -> NDArray[np.float32]:
    """Inputs [rows, ...]: a column, a list of them, a prefix ``p*``, or (None) all others."""
    if isinstance(x, str) and not x.endswith("*"):
        names = [x]
        column(columns, x, "x", path)
    elif isinstance(x, str):
        names = [n for n in columns if n.startswith(x[:-1]) and n not in taken]
        if not names:
            raise UserError(f"{path} has no column that starts with {x[:-1]!r}; it has "
                            f"{', '.join(columns)}.")  # fmt: skip
    elif x is None:
        names = ["x"] if "x" in columns else [n for n in columns if n not in taken]
    else:
        names = list(x)
        for name in names:
            column(columns, name, "x", path)
    same_length(columns, {*names, *taken}, path)
    parts = [_real(columns[name], name, path) for name in names]
    out = parts[0] if len(parts) == 1 and parts[0].ndim > 1 else np.column_stack(parts)
    finite(out, names, path)
    return out


def _real(values: NDArray[Any], name: str, path: Path) -> NDArray[np.float32]:
    dates = [v for v in values[:1].tolist() if isinstance(v, date)]
    if values.dtype.kind in "Mm" or (values.dtype == object and dates):
        raise UserError(
            f"column {name!r} of {path} holds dates, not numbers; leave it out of x, or make "
            f"numbers of it first (such as the day of the year)."
        )
    try:
        real = values.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"column {name!r} of {path} is not made of numbers ({error}); leave it "
                        f"out of x.") from None  # fmt: skip
    return real / np.float32(255.0) if values.dtype == np.uint8 and values.ndim > 2 else real


def token_numbers(
    columns: Columns, x: str | Sequence[str] | None, tokens: bool | None, path: Path
) -> NDArray[np.int64] | None:
    """The rows of token numbers that x is, if it is: one array of whole numbers with an axis per
    row. Without a word of the user's (``tokens`` None) bytes and truth values are none."""
    name = x if isinstance(x, str) else "x"
    values = columns.get(name)
    fits = values is not None and values.ndim == 2 and values.dtype.kind in "iu"
    if tokens is False or (tokens is None and (not fits or values.dtype.itemsize == 1)):  # type: ignore[union-attr]
        return None
    if not fits or values is None:
        raise UserError(f"tokens of data set 'files' is true, and {name!r} of {path} is no array "
                        f"of rows of whole numbers.")  # fmt: skip
    if values.size and int(values.min()) < 0:
        if tokens is None:
            return None
        raise UserError(f"{name!r} of {path} has numbers below 0, so they are no tokens.")
    return values.astype(np.int64) if values.shape[1] > 1 or tokens else None


def same_length(columns: Columns, names: set[str], path: Path) -> None:
    sizes = {name: len(columns[name]) for name in sorted(names) if name in columns}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size:,}" for name, size in sizes.items())
        raise UserError(f"columns of {path} are not equally long: {told} rows.")


def finite(x: NDArray[np.float32], names: Sequence[str], path: Path) -> None:
    """Refuse NaN with the number of its row, counted from 1 without the header."""
    bad = ~np.isfinite(x.reshape(len(x), -1))
    if bad.any():
        row, place = (int(v[0]) for v in np.nonzero(bad))
        where = f" (column {names[place]!r})" if len(names) == bad.shape[1] else ""
        raise UserError(
            f"{path} has a value that is missing, NaN or infinite in row {row + 1}{where}, and "
            f"{int(bad.any(1).sum())} such rows in all; every value must be finite."
        )


def codes(values: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    """Names or numbers as 0 .. n-1 in sorted order."""
    missing = [i for i, v in enumerate(values.tolist()) if v is None or v != v]
    if missing:
        raise UserError(f"column {name!r} of {path} has no value in row {missing[0] + 1}.")
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
