"""Member tables: who is here from when to when, as CSV or listed, and traces of the same form."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError, suggestion
from shoal.data.time_column import DAY, Periods, seconds_of
from shoal.worlds.members.ids import MemberIds
from shoal.worlds.members.membership import Change, Membership, SessionMembers

COLUMNS = ("member", "from", "to")
Mask = NDArray[np.bool_]


class Stay(NamedTuple):
    """One row of a member table. A moment is seconds since 1970 where the table has dates, else a
    number; None: open. ``end`` is included, a day with all of it."""

    member: str
    begin: float | None
    end: float | None
    place: str  # "members.csv, row 3"


class Stays(NamedTuple):
    """The rows of a table, and whether it has dates."""

    rows: tuple[Stay, ...]
    dated: bool
    where: str


def read_stays(value: Any, key: str) -> Stays:
    """A table from the path of a CSV file, or from a list of mappings, with ``member``, ``from``
    and ``to``; an empty ``from`` is the beginning, an empty ``to`` the end.

    >>> listed = [{"member": "Leeds", "from": 2, "to": 5}, {"member": "York", "to": 3}]
    >>> [stay[:3] for stay in read_stays(listed, "members").rows]
    [('Leeds', 2.0, 5.0), ('York', None, 3.0)]
    """
    where = str(value) if isinstance(value, str) else key
    stays: list[Stay] = []
    kinds: dict[bool, str] = {}
    for number, row in enumerate(_rows(value, key), 1):
        place = f"{where}, row {number}"
        given = row.get("member")
        name = "" if given is None else str(given).strip()
        if not name:
            raise UserError(f"{place}: it names no member.")
        ends = []
        for column in ("from", "to"):
            moment, dated = _moment(row.get(column), column, place)
            ends.append(moment)
            if moment is not None:
                kinds.setdefault(dated, f"{column} of {place}")
        begin, end = ends
        if begin is not None and end is not None and begin > end:
            raise UserError(f"{place}: {name} would come after it leaves (from {row['from']}, to "
                            f"{row['to']}); from must not be after to.")  # fmt: skip
        stays.append(Stay(name, begin, end, place))
    if not stays:
        raise UserError(f"{where} has no rows; give every member one, with member, from, to.")
    if len(kinds) > 1:
        raise UserError(f"{kinds[True]} is a date and {kinds[False]} is a number; write all of "
                        f"them as dates, or none.")  # fmt: skip
    return Stays(tuple(stays), True in kinds, where)


def _rows(value: Any, key: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list | tuple):
        for number, row in enumerate(value, 1):
            if not isinstance(row, Mapping):
                raise UserError(f"{key}, row {number} is {row!r}; it must be a mapping such as "
                                f"{{member: Leeds, from: 3, to: 9}}.")  # fmt: skip
            _check_columns(row, f"{key}, row {number}")
            yield row
        return
    try:
        with Path(value).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="more", skipinitialspace=True)
            _check_columns(reader.fieldnames or (), value)
            for number, row in enumerate(reader, 1):
                if "more" in row:
                    raise UserError(f"{value}, row {number} has more columns than the header.")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{key}: {value} cannot be read ({error}).") from None


def _check_columns(found: Any, where: object) -> None:
    for column in found:
        if column not in COLUMNS:
            raise UserError(f"{where} has a column {column!r}; {suggestion(column, COLUMNS)}.")
    if "member" not in found:
        raise UserError(f"{where} has no column 'member'; it needs {', '.join(COLUMNS)}.")


def _moment(value: Any, column: str, place: str) -> tuple[float | None, bool]:
    """A number or the seconds of a date, and whether it is a date."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None, False
    try:
        number = float(text)
        if number >= 0 and number < float("inf"):
            return number, False
    except ValueError:
        seconds = seconds_of(text)
        if seconds is not None:
            whole_day = column == "to" and len(text) <= len("2024-03-01")
            return seconds + (DAY - 1 if whole_day else 0), True
    raise UserError(f"{place}: {column} is {text!r}; it must be a number of at least 0, or a date "
                    f"such as 2024-03-01.")  # fmt: skip


def numbered(stays: Stays, names: Sequence[str] | None, members: int) -> NDArray[np.int64]:
    """The member's number of every row; names are those of the data, or plain numbers."""
    known = {name: m for m, name in enumerate(names or map(str, range(members)))}
    for stay in stays.rows:
        if stay.member not in known:
            right = (
                suggestion(stay.member, known)
                if names and len(known) <= 1000
                else (
                    f"the data have {members:,} members"
                    + ("" if names else f", 0 to {members - 1}")
                )
            )
            raise UserError(f"{stay.place}: there is no member {stay.member!r} in the data; "
                            f"{right}.")  # fmt: skip
    return np.array([known[stay.member] for stay in stays.rows])


def in_rounds(stays: Stays, periods: Periods | None, rounds: int) -> NDArray[np.int64]:
    """``[rows, 2]``: the first round of each row, and the one after its last."""
    out = np.empty((len(stays.rows), 2), np.int64)
    for row, stay in enumerate(stays.rows):
        begin, end = stay.begin, stay.end
        if stays.dated and periods is not None:
            first = 0 if begin is None else int(periods.of(begin)) * periods.rounds
            last = rounds if end is None else (int(periods.of(end)) + 1) * periods.rounds
        else:
            if any(m is not None and m != int(m) for m in (begin, end)):
                raise UserError(f"{stay.place}: a round is a whole number.")
            first, last = int(begin or 0), rounds if end is None else int(end) + 1
        out[row] = max(0, first), min(rounds, last)
    return out


def present_in(ids: NDArray[np.int64], spans: NDArray[np.int64], members: int, rounds: int) -> Mask:
    """``[rounds, members]``: who is here, by what any row of a member says."""
    steps = np.zeros((rounds + 1, members), np.int16)
    kept = spans[:, 0] < spans[:, 1]
    np.add.at(steps, (spans[kept, 0], ids[kept]), 1)
    np.add.at(steps, (spans[kept, 1], ids[kept]), -1)
    mask: Mask = steps.cumsum(0)[:rounds] > 0
    return mask


def sessions_of(here: Mask, names: Sequence[str] | None) -> Membership:
    """A session for every stretch of rounds with the same members: ``here`` is ``[rounds,
    members]``.

    >>> found = sessions_of(np.array([[1, 1], [1, 1], [0, 1]], bool), ["Leeds", "York"])
    >>> found.starts, found.note(1)
    ((0, 2), 'Leeds left; 1 here')
    """
    rounds, members = here.shape
    starts = [0, *(r for r in range(1, rounds) if (here[r] != here[r - 1]).any())]

    def ids(mask: Mask) -> NDArray[np.int32]:
        return np.flatnonzero(mask).astype(np.int32)

    changes = tuple(
        Change(ids(here[a] & ~here[b]), ids(here[b] & ~here[a])) for a, b in pairwise(starts)
    )
    return Membership(
        tuple(starts), SessionMembers(members, MemberIds(ids(here[0])), changes, names), rounds
    )
