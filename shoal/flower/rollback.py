"""Members' own reports of how good the model is, and the way back to the last good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low

from shoal.federation import Federation

Scores = dict[int, tuple[float, float]]  # member -> accuracy and loss on its validation rows


@dataclass(frozen=True)
class Good:
    """A state that members found good, and what each of them said of it."""

    federation: Federation
    scores: Scores


def mean_accuracy(scores: Scores, rows: Callable[[int], int]) -> float | None:
    """The mean over members, weighed by the rows they judge with."""
    total = sum(rows(member) for member in scores)
    if not total:
        return None
    return sum(rows(m) * accuracy for m, (accuracy, _) in scores.items()) / total


class Watch:
    """Remembers the best state of a session, and says when a model is worse than it by too much.

    Only members that judged both are compared, so that who came or left does not decide. Every
    member has one vote, however many rows it says that it judges with, and more than half decide.
    """

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.good: Good | None = None

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
            self.good = Good(federation, scores)
            return None
        then = self.good.scores
        votes = [then[m][0] - scores[m][0] for m in set(scores) & set(then) if rows(m)]
        if not votes:
            return None
        if sum(votes) <= 0:
            self.good = Good(federation, scores)
        worse = median_low(votes)
        return worse if worse > self.allowed else None
