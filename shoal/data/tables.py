"""Tables as columns by name, read in blocks of rows: CSV, Parquet, arrays, data frames."""

from __future__ import annotations

import csv as plain_csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.files import check_room
from shoal.data.file_formats import npy, npz, opened

Array = NDArray[Any]
Kind = Literal["number", "text", "date", "list", "empty", "other"]
BLOCK = 1 << 16  # rows
FEW = 1 << 16  # whole numbers this near to each other are counted, not sorted
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>")
COMMA = re.compile(r"[-+]?\d+,\d+$")
THOUSANDS = r"^[-+]?[1-9]\d{0,2}(,\d{3})+$"
SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Table:
    """Columns of equal length. ``where`` names it in messages; ``column`` gives a whole column,
    ``blocks`` some columns block by block, so that a large file is never in memory twice.

    Missing values are NaN among numbers, None among texts, NaT among dates.
    """

    where: str
    kinds: Mapping[str, Kind]
    rows: int
    column: Callable[[str], Array]
    blocks: Callable[[Sequence[str]], Iterator[list[Array]]]
    notes: tuple[str, ...] = ()  # what a user should know of how it was read

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    def check(self, name: str, key: str) -> str:
        """The name of a column itself, or a complaint with the nearest one."""
        if name in self.kinds:
            return name
        near = get_close_matches(str(name), self.names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? it has" if near else "it has"
        raise UserError(
            f"{self.where} has no column {name!r} for {key}; {hint} {', '.join(self.names)}."
        )

    def given(self, name: str, key: str) -> Array:
        """A whole column that a key names."""
        return self.column(self.check(name, key))


# ---- files ---------------------------------------------------------------------------------------
def read(path: Path, missing: Sequence[str] = ()) -> Table:
    """A file by its ending: .npz, .npy, .csv(.gz) or .parquet; ``missing`` are further texts of a
    CSV file that stand for no value."""
    name = path.name.lower()
    if name.endswith(".npz"):
        return of_arrays(npz(path), str(path))
    if name.endswith(".npy"):
        return of_arrays({"x": npy(path)}, str(path))
    if name.endswith((".csv", ".csv.gz")):
        return _csv(path, missing)
    if name.endswith((".parquet", ".pq")):
        return _parquet(path)
    raise UserError(
        f"{path} ends in none of .npz, .npy, .csv, .csv.gz, .parquet, and is no folder of images."
    )


def _csv(path: Path, missing: Sequence[str]) -> Table:
    with _readable(path):
        with opened(path) as file:
            head = _text(file.readline(1 << 20), path).lstrip("\ufeff")
        signs = Counter(sign for sign in head if sign in SEPARATORS)
        separator = max(SEPARATORS, key=lambda sign: signs[sign])
        names = next(plain_csv.reader([head], delimiter=separator), [])
        _check_names(names, path)
        found = _parsed(path, missing, separator, ".")
        _check_letters(found, path)
        commas = [] if separator == "," else _with_commas(found)
        if not commas:
            return of_arrow(found, str(path))
        found = _parsed(path, missing, separator, ",")
        for name in set(found.column_names).difference(commas):
            _check_points(found.column(name), name, commas[0], path)
        note = f"data: {path} writes numbers with a comma, such as those of {commas[0]!r}"
        return replace(of_arrow(found, str(path)), notes=(note,))


def _parsed(path: Path, missing: Sequence[str], separator: str, point: str) -> Any:
    from pyarrow import ArrowInvalid, csv

    reading = csv.ConvertOptions(
        null_values=[*MISSING, *missing], strings_can_be_null=True, decimal_point=point
    )
    parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    for threads in (True, False):  # without threads, a row that is wrong has a number
        with opened(path) as file:
            try:
                return csv.read_csv(file, csv.ReadOptions(use_threads=threads), parsing, reading)
            except ArrowInvalid as error:
                wrong = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
                if wrong:
                    raise UserError(f"{path} has {wrong[3]} values in row {int(wrong[1]) - 1}, "
                                    f"and its first line names {wrong[2]} columns; correct "
                                    f"that row.") from None  # fmt: skip
                if not threads:
                    raise
    raise AssertionError("unreachable")


def _with_commas(found: Any) -> list[str]:
    """Columns of texts that are numbers with a comma for a point; ``1,234`` alone may also be a
    thousand, and is none."""
    from pyarrow import compute, types

    out = []
    for field in found.schema:
        if not types.is_string(field.type):
            continue
        texts = found.column(field.name).drop_null()
        every = compute.match_substring_regex(texts, r"^[-+]?\d+(,\d+)?([eE][-+]?\d+)?$")
        some = texts.filter(compute.match_substring(texts, ","))
        thousands = compute.match_substring_regex(some, THOUSANDS)
        if len(some) and compute.all(every).as_py() and not compute.all(thousands).as_py():
            out.append(field.name)
    return out


def _check_points(values: Any, name: str, other: str, path: object) -> None:
    """Refuse numbers with a point beside columns with a comma: 1.234 may be a thousand there."""
    from pyarrow import types

    if not types.is_string(values.type):
        return
    texts = [text for text in values.to_pylist() if text is not None]
    if texts and all(is_number(text) for text in texts):
        raise UserError(f"{path} writes numbers with a comma in column {other!r} and with a point "
                        f"in column {name!r}, such as {texts[0]!r}; write all of them in one "
                        f"way.")  # fmt: skip


def _text(line: bytes, path: object, place: str = "its first line") -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not written in UTF-8 ({place}); save it anew, as 'CSV "
                        f"UTF-8'.") from None  # fmt: skip


def _check_letters(table: Any, path: object) -> None:
    """Refuse texts that are no UTF-8, which pyarrow reads as bytes."""
    from pyarrow import types

    for field in table.schema:
        if types.is_binary(field.type) or types.is_large_binary(field.type):
            for row, value in enumerate(table.column(field.name).to_pylist(), 1):
                _text(value or b"", path, f"column {field.name!r}, row {row}")


def _check_names(names: Sequence[str], path: object) -> None:
    """Refuse a table whose columns cannot be told apart, or that begins with its values."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        places = [str(i + 1) for i, name in enumerate(names) if name == twice]
        raise UserError(f"{path} has several columns called {twice!r} (columns "
                        f"{', '.join(places)}); every column needs a name of its own.")  # fmt: skip
    if names and all(is_number(name) for name in names):
        raise UserError(f"{path} has values ({', '.join(names[:3])}, ...) in its first line, which "
                        f"must have the names of the columns.")  # fmt: skip


def _parquet(path: Path) -> Table:
    from pyarrow import parquet

    with _readable(path):
        about = parquet.read_metadata(path)
        schema = about.schema.to_arrow_schema()
    check_room(8 * about.num_rows * about.num_columns, path.stat().st_size, path)
    _check_names(schema.names, path)

    def column(name: str) -> Array:
        with _readable(path):
            return _array(parquet.read_table(path, columns=[name]).column(name))

    def blocks(names: Sequence[str]) -> Iterator[list[Array]]:
        with _readable(path), parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(BLOCK, columns=list(names)):
                yield [_array(batch.column(name)) for name in names]

    kinds = {field.name: _arrow_kind(field.type) for field in schema}
    return Table(str(path), kinds, about.num_rows, column, blocks)


class _readable:  # noqa: N801
    """What a reader finds wrong with a file is one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from pyarrow import ArrowException

        if isinstance(error, ArrowException | OSError | EOFError | plain_csv.Error):
            reason = " ".join(str(error).split())
            raise UserError(f"{self.path} cannot be read ({reason}).") from None


# ---- what is in memory ---------------------------------------------------------------------------
def of_arrays(columns: Mapping[str, Array], where: str) -> Table:
    """Arrays by name; one that is longer than others is complained of when it is used."""
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    flat = {name: a for name, a in arrays.items() if a.ndim}

    def blocks(names: Sequence[str]) -> Iterator[list[Array]]:
        for begin in range(0, len(flat[names[0]]), BLOCK):
            yield [flat[name][begin : begin + BLOCK] for name in names]

    rows = max((len(a) for a in flat.values()), default=0)
    return Table(where, {n: kind_of(a) for n, a in flat.items()}, rows, flat.__getitem__, blocks)


def of_arrow(table: Any, where: str) -> Table:
    """A table of pyarrow's."""
    _check_names(table.column_names, where)

    def blocks(names: Sequence[str]) -> Iterator[list[Array]]:
        for batch in table.select(list(names)).to_batches(max_chunksize=BLOCK):
            yield [_array(values) for values in batch.columns]

    kinds = {field.name: _arrow_kind(field.type) for field in table.schema}
    return Table(where, kinds, table.num_rows, lambda name: _array(table.column(name)), blocks)


def _array(values: Any) -> Array:
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        if "string_view" in str(kind.value_type):  # polars': it has no cast of its own
            values, kind = values.cast(pa.dictionary(pa.int64(), pa.string())), pa.string()
        kind = getattr(kind, "value_type", kind)
        values = values.cast(kind)
    if pa.types.is_boolean(kind) and values.null_count:
        values = values.cast(pa.int8())
    if pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
    if kind.num_fields:
        return np.array(values.to_pylist())
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _arrow_kind(kind: Any) -> Kind:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_null(kind):
        return "empty"
    if types.is_boolean(kind) or types.is_decimal(kind) or types.is_primitive(kind):
        if types.is_date(kind) or types.is_timestamp(kind):
            return "date"
        return "other" if types.is_temporal(kind) else "number"
    if types.is_string(kind) or types.is_large_string(kind) or "string_view" in str(kind):
        return "text"
    return "list" if types.is_nested(kind) and not types.is_struct(kind) else "other"


def kind_of(values: Array) -> Kind:
    """What an array holds; one of several axes is a list a row."""
    if values.ndim > 1:
        return "list"
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind in "MUT":
        return "date" if values.dtype.kind == "M" else "text"
    if values.dtype != object:
        return "other"
    first = next((v for v in values.tolist() if v is not None and v == v), None)
    if first is None:
        return "empty"
    if isinstance(first, date):
        return "date"
    if isinstance(first, list | tuple | np.ndarray):
        return "list"
    return "text" if isinstance(first, str) else (
        "number" if isinstance(first, int | float | Decimal) else "other"
    )  # fmt: skip


def is_number(text: str) -> bool:
    """
    >>> is_number(" 1e-3"), is_number("1,5"), is_number("nan")
    (True, False, True)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def row_of(mask: Any) -> int:
    """The first row that is marked, counted from 1 without the header."""
    return int(np.flatnonzero(mask)[0]) + 1


def no_value(values: Array) -> NDArray[np.bool_]:
    """Which rows have none: NaN, NaT, None."""
    if values.dtype.kind in "fM":
        return np.asarray(np.isnan(values) if values.dtype.kind == "f" else np.isnat(values))
    if values.dtype == object:
        return np.array([v is None or v != v for v in values.tolist()], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def same_length(table: Table, names: Sequence[str]) -> None:
    """Refuse arrays of a file that have not a row each for the same things."""
    if not table.where.lower().endswith(".npz"):
        return
    sizes = {name: len(table.column(name)) for name in sorted(set(names))}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size:,}" for name, size in sizes.items())
        raise UserError(f"columns of {table.where} are not equally long: {told} rows.")


def codes(values: Array, name: str, where: object) -> tuple[NDArray[np.int64], list[Any]]:
    """Names or numbers as 0 .. n-1 in sorted order, and what they stand for."""
    bad = no_value(values)
    if bad.any():
        raise UserError(f"column {name!r} of {where} has no value in row {row_of(bad)}"
                        f"{such(bad)}.")  # fmt: skip
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < FEW:  # without sorting
            places = np.subtract(values, low, dtype=np.int64)
            used = np.bincount(places, minlength=high - low + 1) > 0
            number = np.cumsum(used) - 1
            return number[places], (np.flatnonzero(used) + low).tolist()
    try:
        known, found = np.unique(values, return_inverse=True)
    except TypeError:
        kinds = sorted({type(v).__name__ for v in values.tolist()})
        raise UserError(f"column {name!r} of {where} mixes {' and '.join(kinds)}.") from None
    return found.reshape(-1).astype(np.int64), known.tolist()


def such(bad: NDArray[np.bool_]) -> str:
    return f" ({int(bad.sum()):,} such rows)" if bad.sum() > 1 else ""


def alike(names: Iterable[str]) -> list[str]:
    """A sentence on names that differ in nothing but case and spaces, if there are some.

    >>> alike(["Leeds", "York", "leeds "])
    ["'Leeds' and 'leeds ' differ in case or spaces only, and are two members"]
    """
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            return [f"{other!r} and {name!r} differ in case or spaces only, and are two members"]
    return []


def check_mixed(values: Array, name: str, where: object) -> None:
    """Refuse texts of which most are numbers: a cell went wrong, and the column with it."""
    found = Counter(v for v in values.tolist() if v is not None)
    commas = sum(count for text, count in found.items() if COMMA.match(str(text)))
    numbers = sum(count for text, count in found.items() if is_number(str(text)))
    if commas * 2 > found.total() == commas + numbers:
        raise UserError(f"column {name!r} of {where} writes numbers with a comma, such as "
                        f"{next(t for t in found if COMMA.match(str(t)))!r}, which may be a "
                        f"fraction or thousands; write them with a point.")  # fmt: skip
    if (numbers + commas) * 2 > found.total() > numbers:
        wrong = np.array([v is not None and not is_number(str(v).replace(",", ".", commas > 0))
                          for v in values.tolist()])  # fmt: skip
        row = row_of(wrong)
        raise UserError(
            f"column {name!r} of {where} holds numbers, but {values[row - 1]!r} in row {row}"
            f"{such(wrong)}; correct it, or say that it stands for a missing value with "
            f"missing: [{values[row - 1]!r}]."
        )
