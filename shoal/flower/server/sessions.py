"""The world as it happened: when a session begins, who was here in a round, and when the server
goes back to the last model that members found good."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

import torch

from shoal.federation import Federation
from shoal.rundir import dump_json, write_text
from shoal.types import ClientData, Pool, Shift
from shoal.worlds.base import Moment


# ---- when a session begins ----
@dataclass
class SessionTracker:
    """A change of members must be seen at ``settle`` further starts of rounds to be a session.

    >>> sessions = Sessions(settle=1)
    >>> sessions.members_of_round([0, 1])
    ((0, 1), True)
    >>> sessions.members_of_round([0, 1, 2]), sessions.members_of_round([0, 1, 2])
    (((0, 1), False), ((0, 1, 2), True))
    """

    settle: int
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
        if self._seen > self.settle or not left:
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


def mean_accuracy(scores: Scores, rows: Callable[[int], int]) -> float | None:
    """The mean over members, weighed by the rows they judge with."""
    total = sum(rows(member) for member in scores)
    if not total:
        return None
    return sum(rows(m) * accuracy for m, (accuracy, _) in scores.items()) / total


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


class LiveWorld:
    """Moments as they happened. A round has one once it is opened; resuming reads them again."""

    def __init__(self, rounds: int, file: Path | None = None) -> None:
        self._rounds, self._file = rounds, file
        self._opened: dict[int, tuple[int, tuple[int, ...]]] = {}  # round -> session, members
        self.sizes: dict[int, int] = {}  # rows that members said they have
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            self._opened = {int(r): (s, tuple(m)) for r, (s, m) in kept["rounds"].items()}
            self.sizes = {int(m): n for m, n in kept["sizes"].items()}

    # ---- what the server tells it ----
    def open(self, round: int, members: Sequence[int], new_session: bool) -> Moment:
        """The members of a round; what was opened after it is forgotten (the server went back)."""
        session = self._opened[round - 1][0] if round and round - 1 in self._opened else 0
        session += bool(new_session and round)
        self._opened = {r: entry for r, entry in self._opened.items() if r < round}
        self._opened[round] = (session, tuple(sorted(members)))
        if self._file is not None:
            write_text(self._file, dump_json(self.saved()) + "\n")
        return self.at(round)

    # ---- what a round asks ----
    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def pad(self) -> int:
        """Rows of the largest member, or 0 when all have equally many."""
        return max(self.sizes.values()) if len(set(self.sizes.values())) > 1 else 0

    def at(self, round: int) -> Moment:
        if round not in self._opened:
            return Moment(round, 0, 0, range(1_000_000), None, round, self._rounds)
        session, members = self._opened[round]
        first = min(r for r, (s, _) in self._opened.items() if s == session)
        shift = Shift(round, MEMBERS) if round == first and round else None
        return Moment(round, session, 0, members, shift, round - first, self._rounds - first)

    def train(self, client: int, round: int) -> ClientData:
        """No samples: a node has its own."""
        nothing = torch.zeros(0, dtype=torch.int64)
        return ClientData(
            Pool(nothing, nothing), nothing, nothing, float(self.sizes.get(client, 0))
        )

    def block(self, client: int, round: int) -> int:
        """A node has its own data, of which the server knows nothing: they stand."""
        return 0

    def validation(self, client: int, round: int) -> ClientData | None:
        return None

    def tests(self, round: int) -> dict[str, ClientData]:
        return {}

    def saved(self) -> dict[str, Any]:
        rounds = {str(r): [s, list(m)] for r, (s, m) in sorted(self._opened.items())}
        return {"rounds": rounds, "sizes": {str(m): n for m, n in sorted(self.sizes.items())}}
