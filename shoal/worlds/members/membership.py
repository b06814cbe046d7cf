"""Static, churn in groups or a ring, Poisson arrivals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, exp
from typing import Any, overload

import numpy as np

from shoal.core.errors import UserError
from shoal.core.rng import Purpose, keys, sample, uniform
from shoal.worlds.members.ids import Array, MemberIds, MemberRanges, Recent, ids_of, pairs, tidy
from shoal.worlds.spec import Reader, is_whole

# ---- membership ----------------------------------------------------------------------------------
# Who is here: nobody moves, groups take turns, or members arrive and leave in a ring.

Ids = range | MemberRanges | MemberIds


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
    if isinstance(members, MemberIds):
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
    right = f"a list of {sessions} group numbers from 0 to {groups - 1}, one per session"
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


# ---- flow ----------------------------------------------------------------------------------------
# Random arrivals and departures: how many is Poisson, who is uniform.

KEYS = ("present", "arrive", "leave", "every", "returns")
NAMED = 8  # members that come or leave at once and are called by their names


@dataclass(frozen=True)
class Change:
    """Who leaves and who comes when a session begins."""

    left: Array
    came: Array


@dataclass(frozen=True, eq=False)
class SessionMembers(Sequence[MemberIds]):
    """The members of every session, from those of the first and the changes since.

    A session's members are made when they are asked for: the whole costs a byte per member, four
    bytes per member of the last sessions, and the changes. ``names``: what is told of a
    change names its members, if they are few.
    """

    members: int
    first: range | MemberIds
    changes: tuple[Change, ...]
    names: Sequence[str] | None = None
    _recent: Recent[int, Sequence[int]] = field(default_factory=Recent, repr=False)

    def __len__(self) -> int:
        return 1 + len(self.changes)

    @overload
    def __getitem__(self, index: int) -> MemberIds: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemberIds]: ...
    def __getitem__(self, index: int | slice) -> MemberIds | list[MemberIds]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        session = range(len(self))[index]
        roster = self._recent.get(session, lambda: self._made(session))
        assert isinstance(roster, MemberIds)
        return roster

    def _made(self, session: int) -> MemberIds:
        here = np.zeros(self.members, dtype=bool)
        here[ids_of(self.first)] = True
        for change in self.changes[:session]:
            here[change.left] = False
            here[change.came] = True
        return MemberIds(np.flatnonzero(here).astype(np.int32))

    def note(self, session: int) -> str:
        """What happened when a session began, without making its roster."""
        change = self.changes[session - 1]
        now = len(self.first) + sum(len(c.came) - len(c.left) for c in self.changes[:session])
        if self.names is not None and len(change.came) + len(change.left) <= NAMED:
            told = []
            for verb, ids in (("came", change.came), ("left", change.left)):
                told += [f"{', '.join(self.names[m] for m in ids)} {verb}"] if len(ids) else []
            return f"{'; '.join(told)}; {now:,} here"
        return f"{len(change.came):,} came, {len(change.left):,} left, {now:,} here"

    def saved(self, session: int) -> dict[str, Any]:
        """Plain JSON values."""
        if session == 0:
            return {"members": pairs(self.first)}
        change = self.changes[session - 1]
        return {"left": change.left.tolist(), "came": change.came.tolist()}


def read_poisson(value: Any, members: int, rounds: int, seed: int) -> Membership:
    """``poisson: {present, arrive, leave, every, returns}``.

    Before rounds ``every``, ``2 every`` ... (1 unless given), Poisson(``leave`` x ``every``)
    members present leave, all equally likely (never the last one), and Poisson(``arrive`` x
    ``every``) of those away come, all equally likely. Whoever left can come back unless
    ``returns`` is false. Rounds without a change begin no session.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"poisson is {value!r}; it must be a mapping such as "
                        f"{{present: 100, arrive: 2, leave: 2}}.")  # fmt: skip
    reader = Reader(value, "poisson", KEYS)
    present = reader.whole("present", members)
    if present > members:
        reader.bad("present", f"at most {members}, the number of members")
    arrive = reader.number("arrive", 0.0, 0.0, 1e9, low_too=True)
    leave = reader.number("leave", 0.0, 0.0, 1e9, low_too=True)
    every = reader.whole("every", 1)
    returns = reader.flag("returns", True)
    draw = _Draw(members, present, seed, returns)
    starts, changes = [0], []
    for round in range(every, rounds, every):
        change = draw.change(round, arrive * every, leave * every)
        if len(change.left) or len(change.came):
            starts.append(round)
            changes.append(change)
    return Membership(
        tuple(starts), SessionMembers(members, range(present), tuple(changes)), rounds
    )


class _Draw:
    """Who is here and who is away, in no order: what leaves one pile joins the other."""

    def __init__(self, members: int, present: int, seed: int, returns: bool) -> None:
        self.seed, self.returns = seed, returns
        self.here = np.arange(present, dtype=np.int32)
        self.away = np.arange(present, members, dtype=np.int32)

    def change(self, round: int, arrive: float, leave: float) -> Change:
        key = keys(self.seed, Purpose.WORLD, 4, round)
        u = uniform(key, 2)[0]
        leaving = min(poisson(float(u[0]), leave), len(self.here) - 1)
        coming = min(poisson(float(u[1]), arrive), len(self.away))
        left, self.here = _taken(self.here, keys(self.seed, Purpose.WORLD, 5, round), leaving)
        came, self.away = _taken(self.away, keys(self.seed, Purpose.WORLD, 6, round), coming)
        self.here = np.concatenate([self.here, came])
        if self.returns:
            self.away = np.concatenate([self.away, left])
        return Change(np.sort(left), np.sort(came))


def _taken(pile: Array, key: np.ndarray[Any, Any], count: int) -> tuple[Array, Array]:
    """``count`` random ids of a pile, and the rest of it."""
    if count == 0:
        return np.empty(0, np.int32), pile
    places = sample(key, len(pile), count)
    return pile[places], np.delete(pile, places)


def poisson(u: float, rate: float) -> int:
    """The smallest k with ``P(X <= k) >= u`` for X of Poisson(``rate``).

    >>> [poisson(u, 2.0) for u in (0.1, 0.2, 0.5, 0.9)]
    [0, 1, 2, 4]
    """
    if rate <= 0.0 or u <= exp(-rate):
        return 0
    from scipy.special import pdtrik  # a fifth of a second that few worlds need

    return max(0, ceil(float(pdtrik(u, rate)) - 1e-9))
