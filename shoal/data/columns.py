"""What becomes of columns: numbers are normalised, categories one column each, dates and texts as
asked. Everything is learnt from training rows, and can be applied to other rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.data.tables import Array, Table, check_mixed, no_value, row_of
from shoal.data.text import UNKNOWN, Vocabulary, words

Normalize = Literal["standard", "minmax", "none"]
NORMALIZE: tuple[Normalize, ...] = ("standard", "minmax", "none")
PARTS = ("hour", "weekday", "day", "month", "year", "elapsed")
MOST = 100  # values of a category; a column with more is a text or a name of the row
NONE = "(missing)"
CELLS = 1 << 18  # of a block that is worked on at once: it stays in the cache

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class ColumnEncoder(Protocol):
    """One column of a table as one or more inputs."""

    @property
    def column(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def scaled(self) -> bool:
        """Whether its inputs are numbers on a scale of their own."""
        ...

    def write(self, values: Array, out: Floats) -> None:
        """Put the inputs of some rows into ``out`` [rows, inputs]."""
        ...


@dataclass(frozen=True)
class Numbers:
    """A number less ``offset``, so that large ones keep their digits in float32."""

    column: str
    offset: float = 0.0
    scaled: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column,)

    def write(self, values: Array, out: Floats) -> None:
        if values.dtype == object:
            values = np.array([np.nan if v is None else float(v) for v in values.tolist()])
        with np.errstate(over="ignore"):  # what is too large is refused with its row
            out[:, 0] = values - self.offset if self.offset else values

    def settled(self, values: Array) -> Numbers:
        """With an offset, where float32 could not tell neighbours apart."""
        if values.dtype.kind not in "iuf" or values.dtype.itemsize <= 2 or values.dtype == "f4":
            return self
        known = values[~no_value(values)][:1]
        return replace(self, offset=float(known[0]) if len(known) and np.isfinite(known[0]) else 0)


@dataclass(frozen=True)
class Categories:
    """A column of 0 and 1 per value; one that no training row has is all 0."""

    column: str
    values: tuple[str, ...]
    scaled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}={value}" for value in self.values)

    def write(self, values: Array, out: Floats) -> None:
        out[:] = as_texts(values)[:, None] == np.array(self.values, dtype=object)[None, :]


@dataclass(frozen=True)
class DateParts:
    """``hour``, ``weekday`` (0 is Monday), ``day``, ``month`` and ``year`` as categories."""

    column: str
    part: str
    values: tuple[int, ...]
    form: str | None = None
    where: str = ""
    scaled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column} {self.part} {value}" for value in self.values)

    def write(self, values: Array, out: Floats) -> None:
        found = part_of(dates(values, self.column, self.form, self.where), self.part)
        out[:] = found[:, None] == np.array(self.values)[None, :]


@dataclass(frozen=True)
class Elapsed:
    """Days since ``start``, the first date of a training row."""

    column: str
    start: Any
    form: str | None = None
    where: str = ""
    scaled: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (f"{self.column} elapsed",)

    def write(self, values: Array, out: Floats) -> None:
        found = dates(values, self.column, self.form, self.where)
        days = (found - self.start) / np.timedelta64(1, "D")
        out[:, 0] = np.where(np.isnat(found), np.nan, days)


@dataclass(frozen=True)
class WordCounts:
    """Counts of words, those that few training texts have weighing more.

    ``count * (1 + ln((1 + n) / (1 + texts with the word)))`` over ``n`` training texts, brought to
    the same ``length`` for every text: the root of how many words one has, so that a word is about
    1, as a normalised number is.
    """

    column: str
    vocabulary: Vocabulary
    weight: Floats
    length: float
    scaled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}: {word}" for word in self.vocabulary.tokens[UNKNOWN + 1 :])

    def write(self, values: Array, out: Floats) -> None:
        out[:] = 0.0
        for row, text in enumerate(as_texts(values, "")):
            for word in words(text):
                number = self.vocabulary.number.get(word)
                if number is not None:
                    out[row, number - UNKNOWN - 1] += 1.0
        out *= self.weight
        out *= self.length / np.maximum(np.sqrt(np.square(out).sum(1, keepdims=True)), 1e-12)


# ---- what is learnt of single columns ------------------------------------------------------------
def as_texts(values: Array, missing: str = NONE) -> Array:
    """Values as people write them; whole numbers without a point."""
    none = no_value(values)
    if values.dtype.kind == "f" and np.all(values[~none] == np.floor(values[~none])):
        values = np.where(none, 0, values).astype(np.int64)
    return np.array(
        [missing if n else str(v) for v, n in zip(values.tolist(), none, strict=True)], dtype=object
    )


def category(table: Table, name: str, train: Mask) -> Categories:
    """The values that training rows have."""
    values = table.column(name)
    if table.kinds[name] == "text":
        check_mixed(values, name, table.where)
    found = sorted(set(as_texts(values[train]).tolist()))
    if len(found) > MOST:
        raise UserError(
            f"column {name!r} of {table.where} has {len(found):,} different texts, too many for "
            f"categories; read it as words with text: {name}, or leave it out with leave_out: "
            f"[{name}]."
        )
    return Categories(name, tuple(found))


def counted_words(table: Table, name: str, train: Mask, size: int) -> WordCounts:
    texts = as_texts(table.column(name)[train], "")
    known = Vocabulary.of(texts, size)
    having = Counter(word for text in texts for word in set(words(text)))
    own = np.array([having[word] for word in known.tokens[UNKNOWN + 1 :]], dtype=np.float64)
    if not len(own):
        raise UserError(f"column {name!r} of {table.where} has no words in its training rows.")
    weight = (1.0 + np.log((1 + len(texts)) / (1 + own))).astype(np.float32)
    return WordCounts(name, known, weight, max(1.0, float(own.sum() / len(texts)) ** 0.5))


def date_parts(
    table: Table, name: str, rows: tuple[Mask, Mask], parts: Sequence[str], form: str | None
) -> list[ColumnEncoder]:
    """``rows``: training rows, and those of them that time is counted from."""
    found_in = dates(table.column(name), name, form, table.where)
    known, early = (chosen[~np.isnat(chosen)] for chosen in (found_in[mask] for mask in rows))
    if not len(known) or not len(early):
        raise UserError(f"column {name!r} of {table.where} has no date in its training rows.")
    out: list[ColumnEncoder] = []
    for part in parts:
        if part not in PARTS:
            raise UserError(f"data.date has no feature {part!r}; {suggestion(part, PARTS)}.")
        if part == "elapsed":
            out.append(Elapsed(name, early.min(), form, table.where))
        else:
            found = tuple(np.unique(part_of(known, part)).tolist())
            out.append(DateParts(name, part, found, form, table.where))
    return out


def dates(values: Array, name: str, form: str | None, where: str) -> Array:
    """Dates to the second; ``form`` is how texts write them, ISO 8601 unless it is given."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.dtype.kind == "M":
        return values.astype("datetime64[s]")
    texts = pa.array(as_texts(values, "").tolist(), pa.string())
    if form is None:
        found = np.array([_iso(text) for text in texts.to_pylist()], dtype="datetime64[s]")
    else:
        read = pc.strptime(texts, format=form, unit="s", error_is_null=True)
        found = read.to_numpy(zero_copy_only=False).astype("datetime64[s]")
    bad = np.isnat(found) & ~no_value(values)
    if bad.any():
        row, style = row_of(bad), form or "2026-03-01 or 2026-03-01 14:30"
        raise UserError(
            f"column {name!r} of {where} has {str(values[row - 1])!r} in row {row}, which is no "
            f"date written as {style}; say how dates are written with date: {{column: {name}, "
            f"format: '%d/%m/%Y'}}."
        )
    return found


def _iso(text: str) -> Any:
    from datetime import UTC, datetime

    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return np.datetime64("NaT")
    return np.datetime64(found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found, "s")


def part_of(found: Array, part: str) -> NDArray[np.int64]:
    """A part of every date; -1 of what is missing."""
    missing = np.isnat(found)
    found = np.where(missing, np.datetime64(0, "s"), found)
    days = found.astype("datetime64[D]")
    months = found.astype("datetime64[M]")
    if part == "hour":
        made = (found - days) // np.timedelta64(3600, "s")
    elif part == "weekday":
        made = (days.astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    elif part == "day":
        made = (days - months).astype(np.int64) + 1
    elif part == "month":
        made = months.astype(np.int64) % 12 + 1
    else:
        made = found.astype("datetime64[Y]").astype(np.int64) + 1970
    return np.where(missing, -1, made.astype(np.int64))


# ---- all columns ---------------------------------------------------------------------------------
class Prepared(NamedTuple):
    """Encoders, and what is taken from and divides each of their inputs; ``mean`` stands for what
    is missing."""

    encoders: tuple[ColumnEncoder, ...]
    mean: NDArray[np.float64]
    shift: NDArray[np.float64]
    width: NDArray[np.float64]
    missing: dict[str, int]  # rows without a value, by column

    @property
    def names(self) -> list[str]:
        return [name for encoder in self.encoders for name in encoder.names]

    @property
    def categories(self) -> list[tuple[int, int]]:
        """The first input of every category, and how many it has."""
        ends = np.cumsum([0, *(len(e.names) for e in self.encoders)]).tolist()
        return [(first, len(e.names)) for first, e in zip(ends, self.encoders, strict=False)
                if isinstance(e, Categories | DateParts)]  # fmt: skip

    def apply(self, table: Table) -> Floats:
        """The inputs of other rows, as training rows were prepared."""
        sums = _Sums(table.where, self.names)
        out = np.empty((table.rows, len(self.names)), np.float32)
        _fill(table, self.encoders, [(np.ones(table.rows, dtype=bool), out)], sums)
        _scale(out, self, bool(sums.missing.any()))
        return out


def prepared(
    table: Table,
    encoders: Sequence[ColumnEncoder],
    test: Mask,
    normalize: Normalize,
    first: Mask | None = None,
) -> tuple[Prepared, Floats, Floats]:
    """Inputs of training and of test rows, in the order of the table, and how they were made.

    Means and widths are learnt from training rows; of those only from ``first``, if it is given.
    """
    chosen = list(encoders)
    if normalize != "none":
        learnt = ~test  # a test row says nothing
        if first is not None:
            learnt[~test] = first
        chosen = _settled(table, encoders, learnt)
    names = [name for encoder in chosen for name in encoder.names]
    sums = _Sums(table.where, names, minmax=normalize == "minmax")
    held = int(test.sum())
    train = np.empty((len(test) - held, len(names)), np.float32)
    tested = np.empty((held, len(names)), np.float32)
    _fill(table, chosen, [(~test, train), (test, tested)], sums, first)
    own = np.array([e.scaled for e in chosen for _ in e.names])
    shift, width = sums.scale(normalize)
    empty = [name for name, n in zip(names, sums.count, strict=True) if not n]
    if empty and len(train):
        where = "any training row" if first is None else "a training row of the first period"
        raise UserError(f"column {empty[0]!r} of {table.where} has no value in {where}; "
                        f"leave it out with leave_out: [{empty[0]}].")  # fmt: skip
    by_column = dict(zip(names, sums.missing.tolist(), strict=True))
    made = Prepared(
        tuple(chosen),
        sums.mean,
        np.where(own, shift, 0.0),
        np.where(own, width, 1.0),
        {name: count for name, count in by_column.items() if count},
    )
    for part in (train, tested):
        _scale(part, made, bool(made.missing))
    return made, train, tested


def _settled(table: Table, encoders: Sequence[ColumnEncoder], known: Mask) -> list[ColumnEncoder]:
    """Encoders with their offsets, from the first block of the table that has known rows."""
    begin = 0
    for values in table.blocks([e.column for e in encoders]):
        rows = known[begin : begin + len(values[0])]
        if rows.any():
            return [e.settled(v[rows]) if isinstance(e, Numbers) else e
                    for e, v in zip(encoders, values, strict=True)]  # fmt: skip
        begin += len(rows)
    return list(encoders)


def _fill(
    table: Table,
    encoders: Sequence[ColumnEncoder],
    parts: Sequence[tuple[Mask, Floats]],
    sums: _Sums,
    learnt: Mask | None = None,
) -> None:
    """Write every part's rows; the sums are those of the first part, or of its rows ``learnt``."""
    ends = np.cumsum([len(e.names) for e in encoders]).tolist()
    places = list(zip([0, *ends[:-1]], ends, strict=True))
    step = max(64, CELLS // max(1, ends[-1]))
    block = np.empty((step, ends[-1]), np.float32)
    begin, at = 0, [0] * len(parts)
    for values in table.blocks([e.column for e in encoders]):
        for start in range(0, len(values[0]), step):
            rows = min(step, len(values[0]) - start)
            for encoder, (low, high), column in zip(encoders, places, values, strict=True):
                encoder.write(column[start : start + rows], block[:rows, low:high])
            sums.check(block[:rows], begin)
            for number, (mask, out) in enumerate(parts):
                chosen = np.flatnonzero(mask[begin : begin + rows])
                mine = out[at[number] : at[number] + len(chosen)]
                np.take(block[:rows], chosen, axis=0, out=mine, mode="clip")
                if number == 0:
                    seen = slice(at[0], at[0] + len(chosen))
                    sums.add(mine if learnt is None else mine[learnt[seen]])
                at[number] += len(chosen)
            begin += rows


class _Sums:
    """Count, mean and squared deviations of every input, block by block (Chan et al., 1979)."""

    def __init__(self, where: str, names: Sequence[str], minmax: bool = False) -> None:
        d = len(names)
        self.where, self.names, self.minmax = where, names, minmax
        self.count, self.mean, self.square = (np.zeros(d) for _ in range(3))
        self.low, self.high = np.full(d, np.inf), np.full(d, -np.inf)
        self.missing = np.zeros(d, dtype=np.int64)
        self.holes = False  # in the block at hand

    def check(self, block: Floats, begin: int) -> None:
        """Refuse infinity with its row; note what is missing."""
        self.holes = not np.isfinite(block.sum())
        if not self.holes:
            return
        bad = np.isinf(block)
        if bad.any():
            row, place = (int(v[0]) for v in np.nonzero(bad))
            raise UserError(f"{self.where} has a value that is infinite, or too large, in row "
                            f"{begin + row + 1} (column {self.names[place]!r}); every value must "
                            f"be finite.")  # fmt: skip
        self.missing += np.isnan(block).sum(0)

    def add(self, rows: Floats) -> None:
        if not len(rows):
            return
        if self.holes:
            count = (~np.isnan(rows)).sum(0).astype(np.float64)
            kept = np.nan_to_num(rows.astype(np.float64))
            mean = kept.sum(0) / np.maximum(count, 1)
            square = np.nansum(np.square(rows - mean), 0)
        else:
            count, ones = np.float64(len(rows)), np.ones(len(rows), np.float32)
            mean = (ones @ rows).astype(np.float64) / count  # products are quicker than sums
            apart = rows - mean.astype(np.float32)
            extra = (ones @ apart).astype(np.float64) / count
            with np.errstate(over="ignore", invalid="ignore"):
                np.square(apart, out=apart)
                square = (ones @ apart).astype(np.float64) - count * np.square(extra)
            mean = mean.astype(np.float32) + extra
            self._exactly(rows, mean, square)
        total = np.maximum(self.count + count, 1)
        gap = mean - self.mean
        self.square += square + np.square(gap) * self.count * count / total
        self.mean += gap * count / total
        self.count = self.count + count
        if self.minmax:
            self.low = np.fmin(self.low, np.fmin.reduce(rows, 0))
            self.high = np.fmax(self.high, np.fmax.reduce(rows, 0))

    @staticmethod
    def _exactly(rows: Floats, mean: Any, square: Any) -> None:
        """Again in float64, in place, where float32 has no room for squares or sums."""
        small = (np.abs(mean) < 1e-15) & (square < 1e-30)
        if small.any():
            small &= rows.any(0)  # most are plain zeros: words that no row of the block has
        for place in np.flatnonzero(small | ~np.isfinite(square) | ~np.isfinite(mean)):
            column = rows[:, place].astype(np.float64)
            mean[place] = column.mean()
            square[place] = np.square(column - mean[place]).sum()

    def scale(self, normalize: Normalize) -> tuple[Any, Any]:
        """What is taken from every input, and what divides it; constants stay 0."""
        if normalize == "none":
            return np.zeros_like(self.mean), np.ones_like(self.mean)
        if normalize == "minmax":
            shift, width = self.low, self.high - self.low
        else:
            shift, width = self.mean, np.sqrt(self.square / np.maximum(self.count, 1))
        flat = ~(width > 1e-7 * np.maximum(np.abs(shift), 1e-30))
        return shift, np.where(flat, 1.0, width)


def _scale(x: Floats, made: Prepared, holes: bool) -> None:
    """Fill and normalise in place, block by block."""
    shift, width = made.shift.astype(np.float32), (1.0 / made.width).astype(np.float32)
    plain = not shift.any() and bool((width == 1.0).all())
    for rows in _blocks(x):
        if holes:
            np.copyto(rows, made.mean.astype(np.float32), where=np.isnan(rows))
        if not plain:
            rows -= shift
            rows *= width


def _blocks(x: Floats) -> Iterator[Floats]:
    step = max(64, CELLS // max(1, x.shape[1]))
    for begin in range(0, len(x), step):
        yield x[begin : begin + step]
