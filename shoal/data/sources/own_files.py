"""The user's own data: ``data: {name: files, path: ..., x: ..., y: ..., client: ...}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.core.types import Input, Pool, Target, joined_inputs
from shoal.data import tables
from shoal.data.columns import (
    NORMALIZE,
    PARTS,
    ColumnEncoder,
    Normalize,
    Numbers,
    Prepared,
    as_texts,
    category,
    counted_words,
    date_parts,
    dates,
    prepared,
)
from shoal.data.dataset import Dataset, source
from shoal.data.download import About
from shoal.data.file_formats import by_class, tree
from shoal.data.images import Look, RawSplit, Scale, dataset, split
from shoal.data.tables import Array, Table
from shoal.data.targets import Answers, answers
from shoal.data.text import Vocabulary
from shoal.data.time_column import Calendar, TimeColumn, column_of

FILES = About("files", "your own arrays, CSV, Parquet or images", "as many as there are", None, ())
MEMORY = About("memory", "rows that a program gave to shoal.run", "-", None, ())
Columns = str | Sequence[str]
Given = str | Mapping[str, Any]


@source("files", FILES)
def files(
    *,
    path: str,
    x: Columns | Mapping[str, Columns] | None = None,
    y: Columns = "y",
    client: str | None = None,
    regression: bool = False,
    target: Target | None = None,
    classes: int | None = None,
    tokens: bool | None = None,
    test: float | str = 0.2,
    size: int | None = None,
    scale: Scale = "unit",
    seed: int = 0,
    normalize: Normalize | None = None,
    category: Columns = (),
    date: Given | None = None,
    text: Given | None = None,
    leave_out: Columns = (),
    missing: Columns = (),
    scale_y: bool | None = None,
    calendar: Calendar | None = None,
) -> Dataset:
    """A file of columns, or a folder of images with one folder a class.

    What is learnt of columns (means, categories, words) is learnt from training rows.

    Parameters
    ----------
    path: .npz, .npy, .csv, .csv.gz, .parquet, or a folder of images.
    x: a column, a list of columns, a prefix such as ``pixel*``, or left out: ``x`` if there is
        such a column, otherwise all others. Several inputs: columns by the names that the
        network's forward has for them, as in ``{numbers: [age, income], kinds: [job]}``. Bytes of
        more than one axis become [0, 1].
    y: the column of the answers, or a list of columns; classes are numbered in sorted order of
        their names.
    client: the column that says whose row it is: the natural partition.
    regression: the answers are numbers; the same as ``target: number``.
    target: what y is: class, multi_label (columns of 0 and 1), number, dense (a class per pixel) or
        token (a class per position); left out: as y looks, and a note says what it was taken for.
    classes: how many there are; left out: as many as y has. Give it where y also has labels that
        count for nothing (``loss.ignore_index``), or not every class.
    tokens: whether x is token numbers, which stay whole; left out: true of whole numbers in an
        array of rows of at least two, where the network reads tokens and normalize is left out.
    test: the share of rows (of each class) that is for testing, or a column that is true there.
    size, scale: for images, see ``shoal.data.images``.
    normalize: ``standard`` (mean 0, deviation 1), ``minmax`` (0 to 1) or ``none``, for columns of
        numbers; left out: standard, but arrays of more than one axis per row stay as they are.
    category: columns of numbers that are names (a postcode); texts are categories anyway. Every
        value that training rows have becomes a column of 0 and 1.
    date: ``{column: ..., features: [hour, weekday, day, month, year, elapsed], format: ...}``;
        dates are no inputs unless asked for. ``elapsed`` are days since the first training row.
    text: ``{column: ..., as: counts, vocabulary: 2000}``: weighted counts of the most frequent
        words, beside other columns; or ``{column: ..., as: tokens, vocabulary: 10000, length:
        64}``: sequences of word numbers, for networks that read texts.
    leave_out: columns that are no inputs.
    missing: texts of a CSV file that stand for no value, such as ``?``. A number that is missing
        is the mean of its column, any other value a category of its own.
    scale_y: whether numbers to be learnt are brought to mean 0 and deviation 1 for the network;
        predictions and metrics stay as answers are written. Left out: as inputs are normalised.
    calendar: the column of a dated world (``world.column``), which is no input by itself; or that
        with the world's unit, origin and period: then means, deviations and words are learnt from
        training rows of the first period alone.
    """
    where = Path(path).expanduser()
    if not where.exists():
        raise UserError(f"data: there is no file or folder {path}.")
    if where.is_dir():
        of_tables = {"date": date, "text": text, "normalize": normalize, "world.column": calendar}
        for key, value in of_tables.items():
            if value not in (None, "none"):
                raise UserError(f"{key} is {value!r}, and {path} is a folder of images; {key} is "
                                f"for tables (for images there is scale).")  # fmt: skip
        return _images(where, client, share_of(test), size, scale, seed)
    table = tables.read(where, listed(missing))
    rules = ColumnRules(x, normalize, listed(category), date, text, listed(leave_out), tokens)
    kind = TargetRules(y, target, classes, regression, scale_y)
    return of_table(table, rules, kind, client, test, seed, calendar)


@source("memory", MEMORY)
def memory(*, rows: int, kind: str = "rows") -> Dataset:
    """Rows that a program gave to ``shoal.run(data=...)``; no file has them."""
    raise UserError(f"the data of this run ({rows:,} rows, {kind}) were given to shoal.run in "
                    f"Python; run that program again, or write them to a file.")  # fmt: skip


class ColumnRules(NamedTuple):
    """What becomes of the columns, as :func:`files` says it."""

    x: Columns | Mapping[str, Columns] | None = None
    normalize: Normalize | None = None
    category: Sequence[str] = ()
    date: Given | None = None
    text: Given | None = None
    leave_out: Sequence[str] = ()
    tokens: bool | None = None


class TargetRules(NamedTuple):
    """What the answers are, as :func:`files` says it."""

    y: Columns = "y"
    target: Target | None = None
    classes: int | None = None
    regression: bool = False
    scale_y: bool | None = None

    def answers(self, table: Table) -> Answers:
        if self.regression and self.target not in (None, "number"):
            raise UserError(
                f"target of data set 'files' is {self.target!r}, and regression: true says that y "
                f"is numbers; leave one of the two out."
            )
        named = [(name, table.given(name, "y")) for name in listed(self.y)]
        if not named:
            raise UserError(f"y of data set 'files' names no column; {table.where} has "
                            f"{', '.join(table.names)}.")  # fmt: skip
        if not len(named[0][1]):
            raise UserError(f"{table.where} has names of columns ({', '.join(table.names)}) and no "
                            f"rows.")  # fmt: skip
        tables.same_length(table, [name for name, _ in named])
        for name, values in named:
            if table.kinds[name] == "text":
                tables.check_mixed(values, name, table.where)
        target = "number" if self.regression else self.target
        return answers(named, target, self.classes, table.where)


AS_THEY_ARE = ColumnRules()
AS_IT_LOOKS = TargetRules()


def of_table(
    table: Table,
    rules: ColumnRules = AS_THEY_ARE,
    kind: TargetRules = AS_IT_LOOKS,
    client: str | None = None,
    test: float | str = 0.2,
    seed: int = 0,
    calendar: Calendar | None = None,
) -> Dataset:
    """Training and test rows of a table."""
    learnt = kind.answers(table)
    owner = None if client is None else table.given(client, "client")
    when = None if calendar is None else column_of(calendar)
    came = None if when is None else table.given(when, "the world's calendar, world.column")
    tables.same_length(table, [*listed(kind.y), *([client] if client else [])])
    held = held_rows(table, learnt, test, seed)
    if held.all() or not held.any():
        raise UserError(f"{table.where} leaves no rows for "
                        f"{'training' if held.all() else 'testing'}.")  # fmt: skip
    _check_classes(learnt, held, kind.y, table)
    beside = (client, test, when)
    taken = {*listed(kind.y), *(name for name in beside if isinstance(name, str))}
    notes = [*table.notes, *([learnt.note] if learnt.note else [])]
    times = None
    if came is not None and calendar is not None:
        said = _settings(rules.date, "date", ("column", "features", "format"))
        if said.get("column") == when and said.get("format") is not None:
            came = dates(came, str(when), said["format"], table.where)
        times = TimeColumn.read(calendar, came, held, table.where)
    first = None if times is None else times.first
    made = inputs(table, rules, taken, held, notes, first)
    unread = [n for n in table.names if n not in (*taken, *rules.leave_out, "x")]
    if rules.x is None and "x" in table.names and unread:
        notes.append(f"data: column 'x' is the only input, as in files of arrays; not read: "
                     f"{', '.join(unread)} (data.x names columns)")  # fmt: skip
    pools = [Pool(x, torch.from_numpy(learnt.y[m]))
             for x, m in ((made.train, ~held), (made.test, held))]  # fmt: skip
    classes, vocabulary = learnt.classes, made.vocabulary
    if learnt.target == "token" and vocabulary:  # what is read and what is said are the same tokens
        vocabulary = max(vocabulary, classes or 0)
        classes = kind.classes or vocabulary
    found = Dataset(
        "files", pools[0], pools[1], classes, tuple(pools[0].x.shape[1:]),
        vocabulary=vocabulary, words=made.words.digest if made.words else None, known=made.words,
        notes=tuple(notes), target=learnt.target,
        columns=made.prepared, class_names=tuple(map(str, learnt.names)), inputs=made.several,
    )  # fmt: skip
    if _scales_y(learnt, kind, rules, made):
        y = pools[0].y
        found = found._replace(unit=_unit(y if first is None else y[torch.from_numpy(first)]))
    found = found._replace(times=times)
    return found if client is None or owner is None else _owned(found, owner, client, held, table)


def held_rows(
    table: Table, learnt: Answers, test: float | str = 0.2, seed: int = 0
) -> NDArray[np.bool_]:
    """Which rows are for testing."""
    if isinstance(test, str):
        return _marked(table.given(test, "test"), test, table)
    return stratified(learnt.strata, share_of(test), seed)


def _scales_y(learnt: Answers, kind: TargetRules, rules: ColumnRules, made: Inputs) -> bool:
    if learnt.target != "number":
        if kind.scale_y:
            raise UserError(f"scale_y of data set 'files' is true, and y is read as "
                            f"{learnt.target}; leave it out.")  # fmt: skip
        return False
    normalised = made.prepared is not None and rules.normalize != "none"
    return normalised if kind.scale_y is None else kind.scale_y


def _unit(y: torch.Tensor) -> tuple[tuple[float, float], ...]:
    """Mean and deviation of the answers of training rows."""
    columns = y.double().reshape(len(y), -1)
    spread = columns.std(0, correction=0)
    wide = torch.where(spread > 0, spread, torch.ones_like(spread))
    return tuple(zip(columns.mean(0).tolist(), wide.tolist(), strict=True))


def _owned(
    data: Dataset, owner: Array, client: str, held: NDArray[np.bool_], table: Table
) -> Dataset:
    group, names = tables.codes(owner, client, table.where)
    if len(names) == len(group) > 2:
        raise UserError(f"column {client!r} of {table.where} (client) has another value in every "
                        f"row, so nobody has more than one; name the column that says whose row "
                        f"it is.")  # fmt: skip
    own = [torch.from_numpy(group[m]) for m in (~held, held)]
    texts = tuple(as_texts(np.array(names)).tolist())
    notes = (*data.notes, *(f"data: {told}" for told in tables.alike(texts)))
    return data._replace(group=own[0], test_group=own[1], names=texts, notes=notes)


class Inputs(NamedTuple):
    """Inputs of training and test rows."""

    train: torch.Tensor
    test: torch.Tensor
    prepared: Prepared | None = None
    vocabulary: int | None = None
    words: Vocabulary | None = None
    several: tuple[Input, ...] = ()


def inputs(
    table: Table,
    rules: ColumnRules,
    taken: set[str],
    held: NDArray[np.bool_],
    notes: list[str],
    first: NDArray[np.bool_] | None = None,
) -> Inputs:
    """What a network sees of the rows; ``notes`` gets what a user should know of it. ``first`` are
    those training rows that means, deviations and words are learnt from, all unless given."""
    if rules.normalize not in (None, *NORMALIZE):
        raise UserError(f"normalize of data set 'files' is {rules.normalize!r}; it must be "
                        f"standard, minmax or none.")  # fmt: skip
    if isinstance(rules.x, Mapping):
        return _several(table, rules, rules.x, held)
    text = _settings(rules.text, "text", ("column", "as", "vocabulary", "length"))
    date = _settings(rules.date, "date", ("column", "features", "format"))
    special = {s["column"]: s for s in (text, date) if s}
    for name in (*special, *rules.category, *rules.leave_out):
        table.check(name, "data")
    names = _names(table, rules, taken)
    known = ~held
    if first is not None:
        known[~held] = first
    if text and text.get("as", "counts") == "tokens":
        others = [n for n in names if n != text["column"]]
        if others and rules.x is None:
            notes.append(f"data.text: tokens of {text['column']!r} are the only input; left out "
                         f"are {', '.join(others)}")  # fmt: skip
        elif others:
            raise UserError(f"data.text: tokens cannot stand beside other columns ("
                            f"{', '.join(others)}); write as: counts, or leave out x.")  # fmt: skip
        return _tokens(table, text, held, known)
    names = [*names, *(n for n in special if n not in names)]
    tables.same_length(table, [*names, *taken])
    if (found := _token_numbers(table, names, rules)) is not None:
        most = int(found.max(initial=0)) + 1
        return Inputs(torch.from_numpy(found[~held]), torch.from_numpy(found[held]), None, most)
    if len(names) == 1 and table.kinds[names[0]] == "list":
        values = _array(table, names[0])
        if values.ndim > 2 or (rules.normalize is None and values.dtype.kind not in "fiu"):
            if rules.normalize not in (None, "none"):
                raise UserError(f"normalize is {rules.normalize}, and column {names[0]!r} of "
                                f"{table.where} has arrays of shape {values.shape[1:]}; leave it "
                                f"out.")  # fmt: skip
            return Inputs(torch.from_numpy(values[~held]), torch.from_numpy(values[held]))
        table = tables.of_arrays(
            {f"{names[0]}{i}": values[:, i] for i in range(values.shape[1])}, table.where
        )
        names = table.names
    encoders = _encoders(table, names, rules, text, date, (~held, known), notes)
    made, train, test = prepared(table, encoders, held, rules.normalize or "standard", first)
    if first is not None and (rules.normalize != "none" or text or made.missing):
        notes.append(_said_of_first(made, int(first.sum()), text))
    whose = "training rows" if first is None else "the first period's training rows"
    for name, count in made.missing.items():
        notes.append(f"data: column {name!r} has no value in {count:,} of {table.rows:,} rows; its "
                     f"mean over {whose} stands there")  # fmt: skip
    return Inputs(torch.from_numpy(train), torch.from_numpy(test), made)


def _several(
    table: Table, rules: ColumnRules, named: Mapping[str, Columns], held: NDArray[np.bool_]
) -> Inputs:
    """Inputs by the names that a network has for them; their numbers stay as they are."""
    others = {"normalize": rules.normalize not in (None, "none"), "category": rules.category,
              "date": rules.date, "text": rules.text}  # fmt: skip
    for key, given in others.items():
        if given:
            raise UserError(f"data.{key} does not go with several inputs (x: {', '.join(named)}), "
                            f"whose numbers stay as they are; leave it out.")  # fmt: skip
    found: dict[str, torch.Tensor] = {}
    for name, columns in named.items():
        names = [table.check(column, f"x.{name}") for column in listed(columns)]
        values = [table.column(column) for column in names]
        whole = all(v.dtype.kind in "iu" for v in values)
        kept = [v.astype(np.int64) if whole else _array(table, n)
                for v, n in zip(values, names, strict=True)]  # fmt: skip
        bad = [n for n, v in zip(names, kept, strict=True) if not np.isfinite(v).all()]
        if bad:
            raise UserError(f"column {bad[0]!r} of {table.where} has values that are missing; "
                            f"several inputs need every value.")  # fmt: skip
        found[name] = torch.from_numpy(kept[0] if len(kept) == 1 else np.stack(kept, 1))
    x, inputs = joined_inputs(found)
    return Inputs(x[~held], x[held], several=inputs)


def _names(table: Table, rules: ColumnRules, taken: set[str]) -> list[str]:
    """The columns that ``x`` means."""
    x = rules.x
    if isinstance(x, str) and not x.endswith("*"):
        names = [table.check(x, "x")]
    elif isinstance(x, str):
        names = [n for n in table.names if n.startswith(x[:-1]) and n not in taken]
        if not names:
            raise UserError(f"{table.where} has no column that starts with {x[:-1]!r}; it has "
                            f"{', '.join(table.names)}.")  # fmt: skip
    elif x is None:
        names = ["x"] if "x" in table.names else [n for n in table.names if n not in taken]
    else:
        names = [table.check(name, "x") for name in x]
    names = [name for name in names if name not in rules.leave_out]
    if not names:
        raise UserError(f"{table.where} has no column left for x; it has {', '.join(table.names)}.")
    return names


def _encoders(
    table: Table,
    names: Sequence[str],
    rules: ColumnRules,
    text: Mapping[str, Any],
    date: Mapping[str, Any],
    rows: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    notes: list[str],
) -> list[ColumnEncoder]:
    """``rows``: all training rows, which say what values there are, and those that statistics are
    learnt from."""
    train, known = rows
    out: list[ColumnEncoder] = []
    for name in names:
        kind = table.kinds[name]
        if text and name == text["column"]:
            out.append(counted_words(table, name, known, int(text.get("vocabulary", 2000))))
        elif date and name == date["column"]:
            parts = listed(date.get("features", ()))
            if not parts:
                raise UserError(f"data.date needs features: some of {', '.join(PARTS)}.")
            out += date_parts(table, name, rows, parts, date.get("format"))
        elif kind == "date":
            raise UserError(
                f"column {name!r} of {table.where} holds dates, not numbers; leave it out with "
                f"leave_out: [{name}], or take what matters of it with date: {{column: {name}, "
                f"features: [hour, weekday, month]}}."
            )
        elif kind == "text" or name in rules.category:
            out.append(category(table, name, train))
            _say_missing(table, name, notes)
        elif kind == "number":
            out.append(Numbers(name))
        elif kind == "empty":
            notes.append(f"data: column {name!r} of {table.where} is empty and left out")
        else:
            raise UserError(f"column {name!r} of {table.where} is not made of numbers, texts or "
                            f"dates; leave it out with leave_out: [{name}].")  # fmt: skip
    return out


def _say_missing(table: Table, name: str, notes: list[str]) -> None:
    count = int(tables.no_value(table.column(name)).sum())
    if count:
        notes.append(f"data: column {name!r} has no value in {count:,} of {table.rows:,} rows, "
                     f"which is a category of its own")  # fmt: skip


def _said_of_first(made: Prepared, rows: int, text: Mapping[str, Any]) -> str:
    """That later periods have no part in how inputs look, and which columns that leaves as wide as
    they are."""
    what = "means, deviations and words" if text else "means and deviations"
    own = [name for e in made.encoders if e.scaled for name in e.names]
    flat = [name for name, width in zip(made.names, made.width, strict=True)
            if width == 1.0 and name in own] if made.shift.any() else []  # fmt: skip
    also = f"; {', '.join(flat)} never change there and stay as wide as they are" if flat else ""
    return (f"data: {what} are learnt from the {rows:,} training rows of the first period, "
            f"nothing from later ones{also}")  # fmt: skip


def _tokens(
    table: Table, text: Mapping[str, Any], held: NDArray[np.bool_], learnt: NDArray[np.bool_]
) -> Inputs:
    texts = as_texts(table.column(text["column"]), "")
    known = Vocabulary.of(texts[learnt].tolist(), int(text.get("vocabulary", 10_000)))
    numbers = known.encode(texts.tolist(), int(text.get("length", 64)))
    train, test = (torch.from_numpy(numbers[m]) for m in (~held, held))
    return Inputs(train, test, None, len(known), known)


def _token_numbers(
    table: Table, names: Sequence[str], rules: ColumnRules
) -> NDArray[np.int64] | None:
    """The rows of token numbers that x is, if it is: one array of whole numbers with an axis per
    row. Without a word of the user's (``tokens`` None) bytes, truth values and what is to be
    normalised are none."""
    tokens = rules.tokens
    if tokens is None and (len(names) != 1 or rules.normalize is not None):
        return None
    if tokens is False:
        return None
    values = table.column(names[0])
    fits = len(names) == 1 and values.ndim == 2 and values.dtype.kind in "iu"
    if tokens is None and (not fits or values.dtype.itemsize == 1 or values.shape[1] == 1):
        return None
    if not fits:
        raise UserError(f"tokens of data set 'files' is true, and {names[0]!r} of {table.where} is "
                        f"no array of rows of whole numbers.")  # fmt: skip
    if values.size and int(values.min()) < 0:
        if tokens is None:
            return None
        raise UserError(
            f"{names[0]!r} of {table.where} has numbers below 0, so they are no tokens."
        )
    return values.astype(np.int64)


def _settings(given: Given | None, key: str, known: Sequence[str]) -> dict[str, Any]:
    """A column's settings; a name alone is its column."""
    if given is None:
        return {}
    found = {"column": given} if isinstance(given, str) else dict(given)
    for name in found:
        if name not in known:
            raise UserError(f"data.{key} has no setting {name!r}; {suggestion(name, known)}.")
    if "column" not in found:
        raise UserError(f"data.{key} needs a column, as in {key}: {{column: NAME}}.")
    if found.get("as", "counts") not in ("counts", "tokens"):
        raise UserError(f"data.{key}.as is {found['as']!r}; it must be counts or tokens.")
    return found


def listed(given: Columns) -> list[str]:
    return [given] if isinstance(given, str) else [str(name) for name in given]


def _array(table: Table, name: str) -> NDArray[np.float32]:
    """A column of lists or arrays, [rows, ...]; bytes of images as [0, 1]."""
    values = table.column(name)
    try:
        real = values.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"column {name!r} of {table.where} is not made of numbers ({error}); leave "
                        f"it out of x.") from None  # fmt: skip
    bad = ~np.isfinite(real.reshape(len(real), -1)).all(1)
    if bad.any() and real.ndim > 2:
        raise UserError(f"{table.where} has a value that is missing, NaN or infinite in row "
                        f"{tables.row_of(bad)} of column {name!r}; every value must be "
                        f"finite.")  # fmt: skip
    return real / np.float32(255.0) if values.dtype == np.uint8 and values.ndim > 2 else real


def share_of(test: object) -> float:
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0.0 < test < 1.0:
        raise UserError(f"test of data set 'files' is {test!r}; it must be a share above 0 and "
                        f"below 1, or the name of a column.")  # fmt: skip
    return float(test)


def _marked(values: Array, name: str, table: Table) -> NDArray[np.bool_]:
    """Rows that a column marks: true and false, 1 and 0, or the words for test and training."""
    words = {"true": True, "test": True, "1": True, "false": False, "train": False, "0": False,
             "training": False, "yes": True, "no": False}  # fmt: skip
    found = [words.get(text.lower()) for text in as_texts(values).tolist()]
    bad = np.array([v is None for v in found])
    if bad.any():
        row = tables.row_of(bad)
        raise UserError(f"column {name!r} of {table.where} (test) has {values[row - 1]!r} in row "
                        f"{row}; it must be true or false, 1 or 0, test or train.")  # fmt: skip
    return np.array(found, dtype=bool)


def _check_classes(learnt: Answers, held: NDArray[np.bool_], y: Columns, table: Table) -> None:
    """Refuse a class that nobody could learn."""
    if learnt.target != "class":
        return
    known = np.zeros(int(learnt.y.max(initial=-1)) + 1, dtype=bool)
    known[learnt.y[~held]] = True
    strange = held & ~known[learnt.y]
    if strange.any():
        row = tables.row_of(strange)
        code = int(learnt.y[row - 1])
        told = repr(learnt.names[code] if learnt.names else code)
        raise UserError(f"column {y!r} of {table.where} has the class {told} in row {row}, a test "
                        f"row, and in no training row, so it cannot be learnt; leave such rows "
                        f"out.")  # fmt: skip


def stratified(label: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    test = np.zeros(len(label), dtype=bool)
    for value in np.flatnonzero(np.bincount(label)):
        rows = rng.permutation(np.flatnonzero(label == value))
        test[rows[: round(share * len(rows))]] = True
    return test


def _images(
    path: Path, client: str | None, share: float, size: int | None, scale: Scale, seed: int
) -> Dataset:
    """``class/*.png``, or ``client/class/*.png`` when a client is asked for (its name is free)."""
    with tree(path) as (names, read):
        if not names:
            raise UserError(f"{path} has no images; put them into one folder a class.")
        classes = sorted({PurePosixPath(n).parent.name for n in names})
        part = by_class(names, read, [c.lower() for c in classes], size)
    known: tuple[str, ...] | None = None
    if client is not None:
        owners = np.array([PurePosixPath(n).parts[0] for n in names])
        group, found = tables.codes(owners, client, path)
        part, known = RawSplit(part.x, part.y, group), tuple(found)
    train, test = split(part, share, seed)
    made = dataset("files", train, test, len(classes), Look(size, None, scale))
    return made._replace(names=known)
