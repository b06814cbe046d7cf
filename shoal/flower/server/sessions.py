"""The world as it happened: when a session begins, who was here in a round, and when the server
goes back to the last model that members found good."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import Any

from shoal.core.files import dump_json, write_text
from shoal.core.types import ClientData, Shift
from shoal.core.world_protocol import Moment
from shoal.flower.agreement import ANYBODY, EmptyWorld
from shoal.rounds.state import Federation


# ---- when a session begins ----
@dataclass
class SessionTracker:
    """A change of members must be seen at ``stable_rounds`` more starts of rounds to be a session.

    >>> sessions = SessionTracker(stable_rounds=1)
    >>> sessions.members_of_round([0, 1])
    ((0, 1), True)
    >>> sessions.members_of_round([0, 1, 2]), sessions.members_of_round([0, 1, 2])
    (((0, 1), False), ((0, 1, 2), True))
    """

    stable_rounds: int
    current: frozenset[int] = frozenset()  # members of the session
    _changed: frozenset[int] = field(default=frozenset())
    _seen: int = 0

    def members_of_round(self, here: Sequence[int]) -> tuple[tuple[int, ...], bool]:
        """Members of the next round, and whether a session begins with it."""
        now = frozenset(here)
        if now == self.current:
            self._seen = 0
            return tuple(sorted(now)), False
        self._seen = self._seen + 1 if now == self._changed else 1
        self._changed = now
        # before a change has settled, the round is for those of the session who are still here
        left = now & self.current
        if self._seen > self.stable_rounds or not left:
            self.current, self._seen = now, 0
            return tuple(sorted(now)), True
        return tuple(sorted(left)), False


# ---- back to the last good model ----
Scores = dict[int, tuple[float, float]]  # member -> accuracy and loss on its validation rows


@dataclass(frozen=True)
class GoodState:
    """A state that members found good, and what each of them said of it."""

    federation: Federation
    scores: Scores


def mean_score(scores: Scores, rows: Callable[[int], int], which: int = 0) -> float | None:
    """The mean accuracy (1: loss) over members, weighed by the rows they judge with."""
    total = sum(rows(member) for member in scores)
    if not total:
        return None
    return sum(rows(member) * score[which] for member, score in scores.items()) / total


class RollbackRule:
    """Remembers the best state of a session, and says when a model is worse than it by too much.

    Only members that judged both are compared, so that who came or left does not decide. Every
    member has one vote, however many rows it says that it judges with, and more than half decide.
    """

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.good: GoodState | None = None

    def forget(self) -> None:
        """Another session, other members: there is nothing to compare with."""
        self.good = None

    def judge(
        self, federation: Federation, scores: Scores, rows: Callable[[int], int]
    ) -> float | None:
        """How much worse ``federation`` is than the best, if more than half find it too much: what
        the one says that finds the median worse (of two, the lesser)."""
        if not self.allowed or not scores:
            return None
        if self.good is None:
            self.good = GoodState(federation, scores)
            return None
        then = self.good.scores
        votes = [then[m][0] - scores[m][0] for m in set(scores) & set(then) if rows(m)]
        if not votes:
            return None
        if sum(votes) <= 0:
            self.good = GoodState(federation, scores)
        worse = median_low(votes)
        return worse if worse > self.allowed else None


# ---- the world as it happened ----
MEMBERS = frozenset({"members"})


class LiveWorld(EmptyWorld):
    """Moments as they happened. A round has one once it is opened; resuming reads them again.

    ``world.json`` has them, in the form that reports read. Version 0.1 called the file
    ``sessions.json``.
    """

    def __init__(self, rounds: int, folder: Path | None = None) -> None:
        self.rounds, self._folder = rounds, folder
        self._opened: dict[int, tuple[int, tuple[int, ...]]] = {}  # round -> session, members
        self.sizes: dict[int, int] = {}  # rows that members said they have
        self.named: Mapping[int, str] = {}  # what the roster calls members
        files = [] if folder is None else [folder / "world.json", folder / "sessions.json"]
        file = next((file for file in files if file.exists()), None)
        if file is not None:
            kept = json.loads(file.read_text())
            opened = kept.get("opened", kept["rounds"])
            self._opened = {int(r): (s, tuple(m)) for r, (s, m) in opened.items()}
            self.sizes = {int(m): n for m, n in kept["sizes"].items()}

    # ---- what the server tells it ----
    def open(self, round: int, members: Sequence[int], new_session: bool) -> Moment:
        """The members of a round; what was opened after it is forgotten (the server went back)."""
        session = self._opened[round - 1][0] if round and round - 1 in self._opened else 0
        session += bool(new_session and round)
        self._opened = {r: entry for r, entry in self._opened.items() if r < round}
        self._opened[round] = (session, tuple(sorted(members)))
        if self._folder is not None:
            write_text(self._folder / "world.json", dump_json(self.saved()) + "\n")
        return self.at(round)

    # ---- what a round asks ----
    @property
    def pad(self) -> int:  # type: ignore[override]
        """Rows of the largest member, or 0 when all have equally many."""
        return max(self.sizes.values()) if len(set(self.sizes.values())) > 1 else 0

    def at(self, round: int) -> Moment:
        if round not in self._opened:
            return Moment(round, 0, 0, range(ANYBODY), None, round, self.rounds)
        session, members = self._opened[round]
        first = min(r for r, (s, _) in self._opened.items() if s == session)
        shift = Shift(round, MEMBERS) if round == first and round else None
        return Moment(round, session, 0, members, shift, round - first, self.rounds - first)

    @property
    def _count(self) -> int:
        here = (m for _, members in self._opened.values() for m in members)
        return 1 + max({0, *self.sizes, *here})

    @property
    def names(self) -> list[str] | None:
        """Of every member, by number; None where nobody has said one."""
        if not self.named:
            return None
        count = max(self._count, 1 + max(self.named))
        return [self.named.get(m, f"member {m}") for m in range(count)]

    def train(self, client: int, round: int) -> ClientData:
        return replace(super().train(client, round), count=float(self.sizes.get(client, 0)))

    def saved(self) -> dict[str, Any]:
        """``sessions`` has an entry where members change, as other worlds have it; ``opened`` the
        session and the members of every round."""
        opened = sorted(self._opened.items())
        changes: list[tuple[int, tuple[int, ...]]] = []
        for round, (_, members) in opened:
            if not changes or members != changes[-1][1]:
                changes.append((round, members))
        names = self.names
        return {
            "format": 1,
            "source": "real",
            "rounds": self.rounds,
            "members": self._count,
            **({} if names is None else {"names": names}),
            "sessions": [{"start": r, "members": [[m, m + 1] for m in ms]} for r, ms in changes],
            "opened": {str(r): [s, list(m)] for r, (s, m) in opened},
            "sizes": {str(m): n for m, n in sorted(self.sizes.items())},
        }
