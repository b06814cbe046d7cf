"""What is in a table, before anything is trained on it: sorts of columns, guessed roles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from shoal.core.errors import UserError
from shoal.core.types import Target
from shoal.data.columns import MOST, as_texts, dates, part_of
from shoal.data.tables import (
    COMMA,
    Array,
    Table,
    alike,
    check_mixed,
    is_number,
    no_value,
    read,
    row_of,
    such,
)

Sort = Literal["numbers", "whole numbers", "categories", "texts", "dates", "names of rows",
               "one value", "nothing", "arrays", "other"]  # fmt: skip
FEW = 20  # distinct whole numbers that are classes rather than amounts
MARKS = ("?", "-", "--", "unknown", "missing")
FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%Y %H:%M",
           "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y%m%d")  # fmt: skip
ANSWERS = ("y", "target", "label", "class", "outcome", "answer", "response")
MEMBERS = ("member", "client", "site", "hospital", "clinic", "ward", "practice", "bank", "branch",
           "store", "shop", "school", "station", "device", "sensor", "airport", "centre", "center",
           "user", "customer", "party", "node", "owner", "group", "region", "country")  # fmt: skip
PARTS = ("test", "split", "part", "is_test", "subset")
ROW_NAMES = re.compile(r"(^|_|\b)(id|index|uuid|key|number|nr|no)$", re.IGNORECASE)


class ColumnFacts(NamedTuple):
    """What a column holds; ``odd`` are texts among numbers that stand for no value."""

    name: str
    sort: Sort
    distinct: int = 0
    missing: int = 0
    example: str = ""
    format: str | None = None  # of dates that are texts
    odd: tuple[str, ...] = ()
    binary: bool = False


@dataclass(frozen=True)
class Survey:
    """Facts of a table, and the roles that its columns have, named or guessed."""

    where: str
    rows: int
    columns: tuple[ColumnFacts, ...]
    y: tuple[str, ...] = ()
    target: Target = "class"
    classes: tuple[tuple[str, int], ...] = ()  # each with its rows
    member: str | None = None
    members: tuple[tuple[str, int], ...] = ()  # each with its rows
    date: str | None = None
    features: tuple[str, ...] = ()  # of the date
    text: str | None = None
    test: str | None = None
    leave_out: tuple[tuple[str, str], ...] = ()  # column and reason
    guesses: tuple[str, ...] = ()

    def of(self, name: str) -> ColumnFacts:
        return next(c for c in self.columns if c.name == name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that are inputs by themselves."""
        taken = {*self.y, self.member, self.date, self.test, self.text}
        taken |= {name for name, _ in self.leave_out}
        return tuple(c.name for c in self.columns if c.name not in taken)

    @property
    def dealt(self) -> int:
        """To how many members rows are dealt that name none."""
        return min(10, max(1, self.rows // 10))

    @property
    def odd(self) -> list[str]:
        """Texts that stand for no value among numbers; a member may well be called so."""
        return sorted({text for c in self.columns if c.name != self.member for text in c.odd})


def survey(
    path: Path, y: Sequence[str] = (), member: str | None = None, date: str | None = None
) -> Survey:
    """Look at a file; what is not named is guessed, and ``guesses`` says so."""
    table = read(path)
    if not table.rows:
        raise UserError(f"{path} has names of columns ({', '.join(table.names)}) and no rows.")
    for name, key in (*((n, "--y") for n in y), (member, "--member"), (date, "--date")):
        if name is not None:
            table.check(name, key)
    columns = tuple(_facts(table, name) for name in table.names)
    told = tuple(note.removeprefix("data: ") for note in table.notes)
    found = Survey(str(path), table.rows, columns, guesses=told)
    found = _with_member(found, table, member, (*y, date))
    found = _with_date(found, table, date)
    found = _with_test(found, table)
    found = _with_answers(found, table, y)
    return _with_inputs(found, table)


# ---- columns -------------------------------------------------------------------------------------
def _facts(table: Table, name: str) -> ColumnFacts:
    kind, values = table.kinds[name], table.column(name)
    missing = no_value(values) if values.ndim == 1 else np.zeros(len(values), dtype=bool)
    if kind == "empty" or missing.all():
        return ColumnFacts(name, "nothing", 0, len(values))
    if kind == "list":
        return ColumnFacts(name, "arrays", len(values), 0, "x".join(map(str, values.shape[1:])))
    known = values[~missing]
    facts = ColumnFacts(name, "other", 0, int(missing.sum()), str(known[0]))
    if kind == "text":
        if COMMA.match(str(known[0])):
            check_mixed(known, name, table.where)
        found = _of_texts(facts, as_texts(known).tolist(), len(values))
        if found.sort not in ("dates", "texts"):
            _check_dates(values, name, table.where)
        return found
    if kind not in ("number", "date"):
        return facts
    distinct = len(np.unique(known))
    facts = facts._replace(distinct=distinct, binary=distinct == 2)
    if distinct == 1:
        return facts._replace(sort="one value")
    if kind == "date":
        return facts._replace(sort="dates", example=str(known[0].astype("datetime64[s]")))
    if known.dtype.kind == "b":
        return facts._replace(sort="categories")
    real = known.astype(np.float64)
    if not np.isfinite(real).all():
        raise UserError(f"column {name!r} of {table.where} has a value that is infinite in row "
                        f"{row_of(np.isinf(values.astype(np.float64)))}; every value must be "
                        f"finite.")  # fmt: skip
    whole = bool(np.all(real == np.floor(real)))
    if whole:
        facts = facts._replace(example=str(int(real[0])))
    named = bool(ROW_NAMES.search(name)) or real.max() - real.min() == len(values) - 1
    if whole and named and distinct == len(values) > FEW:
        return facts._replace(sort="names of rows")
    return facts._replace(sort="whole numbers" if whole else "numbers")


def _of_texts(facts: ColumnFacts, texts: list[str], rows: int) -> ColumnFacts:
    found = Counter(texts)
    facts = facts._replace(distinct=len(found), binary=len(found) == 2)
    if len(found) == 1:
        return facts._replace(sort="one value")
    odd = tuple(text for text in found if not is_number(text))
    numbers = sum(count for text, count in found.items() if is_number(text))
    if numbers * 2 > len(texts):
        # one short mark, again and again, says "no value"; a text among numbers is a mistake
        often = len(odd) == 1 and (found[odd[0]] > 1 or odd[0] in MARKS)
        if often and len(odd[0]) <= 10:
            return facts._replace(sort="numbers", odd=odd, distinct=len(found) - 1,
                                  missing=facts.missing + found[odd[0]])  # fmt: skip
        return facts
    form = _format([*found])
    if form is not None:
        return facts._replace(sort="dates", format=form or None)
    length = float(np.mean([len(text.split()) for text in texts[:2000]]))
    if length >= 3 and len(found) > FEW:
        return facts._replace(sort="texts")
    if len(found) <= MOST:
        return facts._replace(sort="categories")
    return facts._replace(sort="names of rows")


def _check_dates(values: Array, name: str, where: object) -> None:
    """Refuse a column of dates of which a few are none: a cell went wrong."""
    texts = Counter(as_texts(values, "").tolist())
    found = [text for text in texts if _LIKE_DATE.match(text)]
    if len(found) * 2 <= len(texts) or sum(texts[text] for text in found) * 2 <= len(values):
        return
    for form in (None, *FORMATS):
        good = {text for text in found if _is_date(text, form)}
        if len(good) * 10 >= len(found) * 9:
            bad = np.array([text != "" and text not in good for text in as_texts(values, "")])
            if bad.any():
                raise UserError(f"column {name!r} of {where} holds dates, but "
                                f"{str(values[row_of(bad) - 1])!r} in row {row_of(bad)}; correct "
                                f"it, or leave the cell empty.")  # fmt: skip


_LIKE_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b")


def _is_date(text: str, form: str | None) -> bool:
    try:
        dates(np.array([text], dtype=object), "", form, "")
    except UserError:
        return False
    return True


def _format(texts: Sequence[str]) -> str | None:
    """How dates are written ("" is ISO 8601), or None where these are no dates."""
    if not all(re.match(r"\d{1,4}[-/.]?\d", text) for text in texts[:50]):
        return None
    some = np.array(texts, dtype=object)
    for form in (None, *FORMATS):
        try:
            dates(some, "", form, "")
        except UserError:
            continue
        return form or ""
    return None


# ---- roles ---------------------------------------------------------------------------------------
def _named(columns: Iterable[ColumnFacts], words: Sequence[str]) -> ColumnFacts | None:
    """The column whose name has the first of these words."""
    listed = list(columns)
    for word in words:
        for column in listed:
            if word in re.split(r"[^a-z0-9]+", column.name.lower()) or column.name.lower() == word:
                return column
    return None


def _with_member(
    found: Survey, table: Table, named: str | None, others: Sequence[str | None]
) -> Survey:
    name = named
    if name is None:
        able = [c for c in found.columns if c.name not in others
                and c.sort in ("categories", "whole numbers", "names of rows")
                and 2 <= c.distinct <= found.rows // 4]  # fmt: skip
        guess = _named(able, MEMBERS)
        if guess is None:
            nobody = (f"no column says whose row it is (--member COLUMN): rows are dealt to "
                      f"{found.dealt} members")  # fmt: skip
            return replace(found, guesses=(*found.guesses, nobody))
        name = guess.name
    counts = Counter(as_texts(table.column(name)).tolist())
    if len(counts) == found.rows > 2:
        raise UserError(f"column {name!r} of {table.where} (--member) has another value in every "
                        f"row, so nobody has more than one; name the column that says whose row "
                        f"it is.")  # fmt: skip
    missing = no_value(table.column(name))
    if missing.any():
        raise UserError(f"column {name!r} of {table.where} (--member) has no value in row "
                        f"{row_of(missing)}; every row needs a member.")  # fmt: skip
    told = [] if named else [f"{name} says whose row it is (by its name; --member COLUMN)"]
    told += alike(counts)
    return replace(found, member=name, members=tuple(sorted(counts.items())),
                   guesses=(*found.guesses, *told))  # fmt: skip


def _with_date(found: Survey, table: Table, named: str | None) -> Survey:
    name = named or next((c.name for c in found.columns if c.sort == "dates"), None)
    if name is None:
        return found
    facts = found.of(name)
    values = dates(table.column(name), name, facts.format, table.where)
    known = values[~np.isnat(values)]
    wanted = [part for part in ("hour", "weekday", "month")
              if len(np.unique(part_of(known, part))) > 1]  # fmt: skip
    told = () if named else (f"{name} says when (its values are dates; --date COLUMN)",)
    if facts.format in ("%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"):
        told = (*told, f"dates in {name} are read as {facts.format}")
    if any(re.search(r":.*([zZ]|[-+]\d\d:?\d\d)$", t) for t in as_texts(table.column(name), "")):
        told = (*told, f"times in {name} name zones, and are read in UTC")
    return replace(found, date=name, features=(*wanted, "elapsed"),
                   guesses=(*found.guesses, *told))  # fmt: skip


def _with_test(found: Survey, table: Table) -> Survey:
    """A column that marks test rows in words, as published tables have it."""
    for column in found.columns:
        if column.name.lower() in PARTS and column.binary:
            words = {text.lower() for text in as_texts(table.column(column.name)).tolist()}
            if words <= {"train", "training", "test", "true", "false"}:
                told = f"{column.name} says which rows are for testing"
                return replace(found, test=column.name, guesses=(*found.guesses, told))
    return found


def _with_answers(found: Survey, table: Table, named: Sequence[str]) -> Survey:
    taken = (found.member, found.date, found.test)
    able = [c for c in found.columns if c.name not in taken
            and c.sort in ("categories", "whole numbers", "numbers")]  # fmt: skip
    chosen, told = tuple(named), ""
    if not chosen:
        several = [c.name for c in able if c.binary and re.match(r"(y|label|tag)s?_", c.name)]
        guess = _named(able, ANSWERS)
        dull = _named((c for c in found.columns if c.sort in ("one value", "nothing")), ANSWERS)
        if guess is None and dull is not None and not several:
            _check_answers(dull, table)
        if len(several) > 1:
            chosen, told = tuple(several), f"{', '.join(several)} are the answers (by their names"
        elif guess is not None:
            chosen, told = (guess.name,), f"{guess.name} has the answers (by its name"
        elif able:
            chosen, told = (able[-1].name,), f"{able[-1].name} has the answers (the last column"
        else:
            raise UserError(f"{table.where} has no column that could hold answers (classes or "
                            f"numbers); name one with --y COLUMN.")  # fmt: skip
        told += "; --y COLUMN)"
    for name in chosen:
        _check_answers(found.of(name), table)
    facts = [found.of(name) for name in chosen]
    found = replace(found, y=chosen, guesses=(*found.guesses, *([told] if told else [])))
    if len(chosen) > 1:
        return replace(found, target="multi_label" if all(f.binary for f in facts) else "number")
    one = facts[0]
    many = one.distinct > FEW if one.sort == "whole numbers" else one.sort == "numbers"
    if many and not one.binary:
        return replace(found, target="number")
    counts = Counter(as_texts(table.column(chosen[0])).tolist())
    if one.sort == "whole numbers" and one.distinct > 2:
        told = (f"{one.name} has {one.distinct} different whole numbers, taken as classes "
                f"(regression: true makes them amounts)")  # fmt: skip
        found = replace(found, guesses=(*found.guesses, told))
    return replace(found, classes=tuple(sorted(counts.items())))


def _check_answers(facts: ColumnFacts, table: Table) -> None:
    start = f"column {facts.name!r} of {table.where} (--y)"
    if facts.sort in ("one value", "nothing"):
        raise UserError(f"{start} has {facts.sort} only, so there is nothing to learn.")
    if facts.sort in ("texts", "dates", "arrays", "names of rows", "other"):
        raise UserError(f"{start} holds {facts.sort}; answers are classes or numbers.")
    if facts.missing:
        values = table.column(facts.name)
        bad = no_value(values)
        if facts.odd:
            bad = bad | np.isin(as_texts(values), list(facts.odd))
        raise UserError(f"{start} has no value in row {row_of(bad)}{such(bad)}; every row needs "
                        f"an answer.")  # fmt: skip


def _with_inputs(found: Survey, table: Table) -> Survey:
    out: list[tuple[str, str]] = []
    taken = {*found.y, found.member, found.date, found.test}
    text = next((c.name for c in found.columns if c.sort == "texts" and c.name not in taken), None)
    reasons = {"names of rows": "names of rows", "one value": "one value only",
               "nothing": "empty", "dates": "a second date", "texts": "a second text",
               "other": "no kind of input"}  # fmt: skip
    for column in found.columns:
        if column.name in taken or column.name == text:
            continue
        if column.sort == "other" and table.kinds[column.name] == "text":
            raise _mixed(column, table)
        if column.sort in reasons:
            out.append((column.name, reasons[column.sort]))
    left = [c for c in found.columns if c.name not in {*taken, *(name for name, _ in out)}]
    if not left and found.date is None:
        raise UserError(f"{table.where} has no column left to learn from; it has "
                        f"{', '.join(table.names)}.")  # fmt: skip
    return replace(found, text=text, leave_out=tuple(out))


def _mixed(column: ColumnFacts, table: Table) -> UserError:
    values: Array = as_texts(table.column(column.name), "")
    bad = np.array([text != "" and not is_number(text) for text in values.tolist()])
    return UserError(f"column {column.name!r} of {table.where} holds numbers, but "
                     f"{values[row_of(bad) - 1]!r} in row {row_of(bad)}; correct it, or leave the "
                     f"cell empty.")  # fmt: skip
