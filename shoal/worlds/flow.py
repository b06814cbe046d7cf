"""Random arrivals and departures: how many is Poisson, who is uniform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp
from typing import Any, overload

import numpy as np

from shoal.errors import UserError
from shoal.rng import Purpose, keys, sample, uniform
from shoal.worlds.membership import Membership
from shoal.worlds.roster import Array, Recent, Roster
from shoal.worlds.spec import Reader

KEYS = ("present", "arrive", "leave", "every", "returns")


@dataclass(frozen=True)
class Change:
    """Who leaves and who comes when a session begins."""

    left: Array
    came: Array


@dataclass(frozen=True, eq=False)
class Flow(Sequence[Roster]):
    """The members of every session, from those of the first and the changes since.

    Ids ``0..present-1`` are here at first. A session's roster is made when it is asked for: the
    whole costs a byte a member, four bytes a member of the last rosters, and the changes.
    """

    members: int
    present: int
    changes: tuple[Change, ...]
    _recent: Recent[int, Sequence[int]] = field(default_factory=Recent, repr=False)

    def __len__(self) -> int:
        return 1 + len(self.changes)

    @overload
    def __getitem__(self, index: int) -> Roster: ...
    @overload
    def __getitem__(self, index: slice) -> list[Roster]: ...
    def __getitem__(self, index: int | slice) -> Roster | list[Roster]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        session = range(len(self))[index]
        roster = self._recent.get(session, lambda: self._made(session))
        assert isinstance(roster, Roster)
        return roster

    def _made(self, session: int) -> Roster:
        here = np.zeros(self.members, dtype=bool)
        here[: self.present] = True
        for change in self.changes[:session]:
            here[change.left] = False
            here[change.came] = True
        return Roster(np.flatnonzero(here).astype(np.int32))

    def note(self, session: int) -> str:
        """What happened when a session began, without making its roster."""
        change = self.changes[session - 1]
        now = self.present + sum(len(c.came) - len(c.left) for c in self.changes[:session])
        return f"{len(change.came):,} came, {len(change.left):,} left, {now:,} here"

    def saved(self, session: int) -> dict[str, Any]:
        """Plain JSON values."""
        if session == 0:
            return {"members": [[0, self.present]]}
        change = self.changes[session - 1]
        return {"left": change.left.tolist(), "came": change.came.tolist()}


def read_flow(value: Any, members: int, rounds: int, seed: int) -> Membership:
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
    arrive = reader.number("arrive", 0.0, -1e-9, float("1e9"))
    leave = reader.number("leave", 0.0, -1e-9, float("1e9"))
    every = reader.whole("every", 1)
    returns = reader.flag("returns", True)
    draw = _Draw(members, present, seed, returns)
    starts, changes = [0], []
    for round in range(every, rounds, every):
        change = draw.change(round, arrive * every, leave * every)
        if len(change.left) or len(change.came):
            starts.append(round)
            changes.append(change)
    return Membership(tuple(starts), Flow(members, present, tuple(changes)), rounds)


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
