"""How far accuracy falls after a shift, and how long it takes to come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Shifted(NamedTuple):
    """What a shift did. Accuracies are shares of 1; None where nothing was measured.

    ``before`` is the mean accuracy of the last evaluations before the shift, ``lowest`` the lowest
    one from the shift to the next (the FLASH paper's accuracy dip, eq. 4), and ``fall`` the
    difference ``before - lowest`` (below 0 where accuracy only rose). ``level`` is what accuracy
    has to come back to, and ``rounds`` the number of rounds from the shift until it was back and
    stayed (0: it never left; None: never, or there is no level).
    """

    round: int
    before: float | None
    lowest: float | None
    fall: float | None
    level: float | None
    rounds: int | None

    @property
    def recovered(self) -> bool:
        return self.rounds is not None

    @property
    def judged(self) -> bool:
        """Whether there is something to come back to, and anything was measured after."""
        return self.level is not None and self.lowest is not None


@dataclass(frozen=True)
class Recovery:
    """The rule. Accuracy has to come back to ``target``, or (None) to ``before``: the mean of the
    last ``window`` evaluations before the shift (fewer if there are fewer, none from before the
    previous shift). Back means within ``margin`` of that for ``hold`` rounds or until the end or
    the next shift, whichever comes first.

    A short window, because a long one takes in the warm-up: a learner that was slow before the
    shift would seem to fall less.

    >>> curve = [0.1, 0.9, 0.9, 0.9, 0.5, 0.7, 0.9, 0.9]
    >>> Recovery().after(curve, 4, 8)
    Shifted(round=4, before=0.9, lowest=0.5, fall=0.4, level=0.9, rounds=2)
    """

    window: int = 3
    margin: float = 0.01
    hold: int = 10
    target: float | None = None

    def all(self, accuracy: Sequence[float | None], shifts: Sequence[int]) -> list[Shifted]:
        """One entry per shift, in order; a shift at round 0 has no before and is left out."""
        starts = sorted({s for s in shifts if 0 < s < len(accuracy)})
        edges = [0, *starts, len(accuracy)]
        return [
            self.after(accuracy, start, edges[i + 2], edges[i]) for i, start in enumerate(starts)
        ]

    def after(
        self, accuracy: Sequence[float | None], start: int, end: int, since: int = 0
    ) -> Shifted:
        """The shift at round ``start``; the next is at ``end``, the one before was at ``since``."""
        earlier = [a for a in accuracy[since:start] if a is not None][-self.window :]
        later = [(i, a) for i, a in enumerate(accuracy[start:end]) if a is not None]
        before = round(sum(earlier) / len(earlier), 12) if earlier else None
        lowest = min(a for _, a in later) if later else None
        known = before is not None and lowest is not None
        fall = round(before - lowest, 12) if known else None  # type: ignore[operator]
        level = self.target if self.target is not None else before
        rounds = self._rounds(later, level) if level is not None else None
        return Shifted(start, before, lowest, fall, level, rounds)

    def _rounds(self, later: list[tuple[int, float]], wanted: float) -> int | None:
        """The first round from which accuracy is back for long enough."""
        # a hair of slack, or 0.9 - 0.01 would not reach 0.89
        level = wanted - self.margin - 1e-12
        begun: int | None = None
        for index, value in later:
            if value < level:
                begun = None
                continue
            begun = index if begun is None else begun
            if index - begun + 1 >= self.hold:
                return begun
        return begun
