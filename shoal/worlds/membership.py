"""Who is here: nobody moves, groups take turns, or members arrive and leave in a ring."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shoal.worlds.roster import Roster
from shoal.worlds.spans import Spans, tidy
from shoal.worlds.spec import Reader, is_whole

Ids = range | Spans | Roster


@dataclass(frozen=True)
class Membership:
    """Session s starts at round ``starts[s]`` and has the members ``present[s]``."""

    starts: tuple[int, ...]
    present: Sequence[Ids]
    rounds: int = 0  # that the sessions were given in all
    groups: int = 1  # equal runs of ids that may differ in the labels they hold

    def session(self, round: int) -> int:
        return bisect_right(self.starts, round) - 1

    def note(self, session: int) -> str:
        told = getattr(self.present, "note", None)  # a flow knows without making rosters
        if told is not None:
            return str(told(session))
        now, before = self.present[session], self.present[session - 1]
        return "same members" if now == before else f"members {describe(now)}"


def describe(members: Ids) -> str:
    """``0..19`` or ``18..19 + 0..3``.

    >>> describe(range(3)), describe(range(4, 5))
    ('0..2', '4')
    """
    if isinstance(members, Roster):
        return f"{len(members):,}"
    pairs = [(members.start, members.stop)] if isinstance(members, range) else members.pairs
    return " + ".join(str(a) if b == a + 1 else f"{a}..{b - 1}" for a, b in pairs)


def still(members: int) -> Membership:
    """Everybody, always."""
    return Membership((0,), (range(members),))


def churn(reader: Reader, members: int) -> Membership:
    """Sessions, each with its rounds and members; the last one lasts until the run ends."""
    count = reader.whole("sessions", 3)
    lengths = reader.lengths("rounds_per_session", count, 20)
    starts = (0, *accumulate(lengths[:-1]))
    if reader.given("present", "arrive", "leave"):
        for key in ("groups", "order", "labels", "overlap"):
            if reader.given(key) and (key, reader.raw(key)) != ("labels", "all"):
                reader.bad(key, "left out when 'present' says who is here")
        return Membership(starts, _ring(reader, members, count), sum(lengths))
    groups = reader.whole("groups", 2)
    if members % groups:
        reader.bad("groups", f"a number that divides the {members} members")
    size = members // groups
    present = [range(g * size, (g + 1) * size) for g in _order(reader, groups, count)]
    return Membership(starts, tuple(present), sum(lengths), groups)


def _order(reader: Reader, groups: int, sessions: int) -> Sequence[int]:
    """Which group each session has: in turn, or as ``order`` says."""
    order = reader.raw("order")
    if order is None:
        return [s % groups for s in range(sessions)]
    right = f"a list of {sessions} group numbers from 0 to {groups - 1}, one a session"
    if not isinstance(order, list | tuple) or len(order) != sessions:
        reader.bad("order", right)
    if not all(is_whole(g) and 0 <= g < groups for g in order):
        reader.bad("order", right)
    return [int(g) for g in order]


def _ring(reader: Reader, members: int, sessions: int) -> tuple[Ids, ...]:
    """A window on the ids in a ring: it starts with ``present`` members, and at each change of
    session the ``leave`` members that are here longest go and the next ``arrive`` ids come (those
    that left come back after everybody else has been here)."""
    present = reader.whole("present", members)
    arrive, leave = reader.whole("arrive", 0, 0), reader.whole("leave", 0, 0)
    out: list[Ids] = []
    for session in range(sessions):
        begin, end = session * leave, present + session * arrive
        if not 1 <= end - begin <= members:
            key = "present" if session == 0 else "arrive" if end - begin > members else "leave"
            reader.bad(key, f"such that session {session} has 1 to {members} members, "
                            f"not {end - begin}")  # fmt: skip
        first, size = begin % members, end - begin
        tail = range(first, min(first + size, members))
        out.append(tidy([tail, range(0, size - len(tail))]))
    return tuple(out)
