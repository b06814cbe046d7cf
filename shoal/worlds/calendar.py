"""Worlds with a calendar: who is here by a table, by the dates of their rows, or by a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shoal.core.errors import UserError
from shoal.data.dataset import Dataset
from shoal.data.time_column import Periods
from shoal.worlds.changes.arrivals import Arrivals, WithRows, belongs, read_arrivals
from shoal.worlds.changes.stages import Stage
from shoal.worlds.members.availability import CHECKED, Availability, Listed, Traced
from shoal.worlds.members.ids import ids_of
from shoal.worlds.members.membership import Membership
from shoal.worlds.members.stays import (
    Mask,
    Stays,
    in_rounds,
    numbered,
    present_in,
    read_stays,
    sessions_of,
)
from shoal.worlds.periods import read_periods
from shoal.worlds.spec import CALENDAR, Reader

CALENDARS = ("table", "dated")


class Timetable(NamedTuple):
    """What a world's calendar says, before anybody holds a row."""

    stays: Stays | None = None
    arrivals: Arrivals | None = None
    periods: Periods | None = None
    listed: int | None = None  # members that the table has, where the data have no clients

    @property
    def dated(self) -> bool:
        return self.stays is not None or self.arrivals is not None


class Dates(NamedTuple):
    """Who is here when, in a world with a calendar."""

    membership: Membership
    available: Availability | None
    notes: tuple[str, ...]


def read_timetable(reader: Reader, data: Dataset) -> Timetable:
    """The member table and the periods of a spec; empty for a world of another kind."""
    name = reader.raw("name")
    if name not in CALENDARS:
        return Timetable()
    given = reader.raw("members")
    table = given if isinstance(given, str | list | tuple) else None
    if name == "table" and table is None:
        reader.bad("members", "the path of a CSV file with member, from, to, or a list of those")
    stays = None if table is None else read_stays(table, "members")
    listed = None if stays is None else _listed(stays)
    if name == "dated":
        if reader.given("lazy") and reader.raw("lazy") is not False:
            reader.bad("lazy", "false, for rows come to members by date")
        arrivals = read_arrivals(reader, data)
        return Timetable(stays, arrivals, arrivals.periods, listed)
    assert stays is not None
    if not stays.dated:
        for key in CALENDAR:
            if reader.given(key):
                reader.bad(key, f"left out, for {stays.where} counts in rounds")
        return Timetable(stays, None, None, listed)
    begins = [stay.begin for stay in stays.rows if stay.begin is not None]
    if not begins and not reader.given("origin"):
        reader.bad("origin", f"the date at which round 0 begins, for {stays.where} has no from")
    return Timetable(stays, None, read_periods(reader, min(begins, default=0.0), True), listed)


def _listed(stays: Stays) -> int:
    """Members of a table whose members are numbers."""
    numbers = [int(s.member) for s in stays.rows if s.member.isdecimal()]
    return 1 + max(numbers, default=0)


def lay_dates(
    reader: Reader,
    table: Timetable,
    stage: Stage,
    members: int,
    names: tuple[str, ...] | None,
    available: Availability | None,
    rounds: int,
) -> Dates:
    """Sessions and who can be reached, by table and by the periods of the rows."""
    arrivals, stays, periods = table.arrivals, table.stays, table.periods
    if stays is not None and stays.dated and periods is not None and not periods.dated:
        raise UserError(f"{stays.where} has dates, and the world's column has plain numbers; write "
                        f"from and to as rounds.")  # fmt: skip
    ids = None if stays is None else numbered(stays, names, members)
    if members * rounds > 10 * CHECKED:
        reader.bad("members", f"such that members times rounds is at most {10 * CHECKED:,}, not "
                              f"{members * rounds:,}")  # fmt: skip
    here = np.ones((rounds, members), bool)
    notes: list[str] = []
    if stays is not None and ids is not None:
        here &= present_in(ids, in_rounds(stays, periods, rounds), members, rounds)
        notes += _absent(here, names, f"{stays.where} and the {rounds} rounds")
    if arrivals is not None:
        come = arrivals.come(stage.population, members)
        here &= np.repeat(belongs(come), arrivals.periods.rounds, 0)[:rounds]
        if stays is None:
            notes += _absent(here, names, f"the {arrivals.count - 1} periods that are trained on")
        available = WithRows(arrivals, arrivals.amounts(come) > 0, available)
    nobody = np.flatnonzero(~here.any(1))
    if len(nobody):
        raise UserError(f"members of {reader.what}: no member is there in round {nobody[0]}; let "
                        f"members stay, or end the run before.")  # fmt: skip
    return Dates(sessions_of(here, names), available, tuple(notes))


def rounds_of(reader: Reader, table: Timetable) -> int:
    """The rounds of a world with a calendar: those of its periods, or until the last one leaves."""
    if table.arrivals is not None:
        most = table.arrivals.rounds
        rounds = reader.whole("rounds", most)
        if rounds > most:
            reader.bad("rounds", f"at most {most}: the last period is only scored on")
        return rounds
    stays = table.stays
    assert stays is not None
    ends = [stay.end for stay in stays.rows]
    if reader.given("rounds"):
        return reader.whole("rounds")
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        reader.bad("rounds", f"a whole number of at least 1, for {stays.where} leaves a to open")
    last = max(known)
    if table.periods is None:
        return reader.whole("rounds", int(last) + 1)
    return reader.whole("rounds", (int(table.periods.of(last)) + 1) * table.periods.rounds)


def _absent(here: Mask, names: tuple[str, ...] | None, where: str) -> Iterator[str]:
    """Who never comes, in a sentence."""
    away = np.flatnonzero(~here.any(0)).tolist()
    if away:
        some = ", ".join(names[m] if names else str(m) for m in away[:5])
        more = f" and {len(away) - 5} more" if len(away) > 5 else ""
        yield f"world.members: never here, by {where}: {some}{more}"


def sessions_by_trace(available: Availability | None, membership: Membership, rounds: int,
             members: int, names: tuple[str, ...] | None) -> Membership | None:  # fmt: skip
    """Sessions that a trace starts (``available: {sessions: true}``): whoever cannot be reached has
    left. None where it starts none."""
    if not isinstance(available, Listed | Traced) or not available.sessions:
        return None
    if members * rounds > CHECKED:
        raise UserError(f"available: sessions: true looks at every member in every round, at most "
                        f"{CHECKED:,} in all, not {members * rounds:,}; leave it out.")  # fmt: skip
    here = np.zeros((rounds, members), bool)
    for round in range(rounds):
        ids = ids_of(membership.present[membership.session(round)])
        here[round, ids[available.awake(ids, round)]] = True
    return sessions_of(here, names)
