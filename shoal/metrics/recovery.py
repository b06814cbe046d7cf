"""How far accuracy falls after a shift, and how long it takes to come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Shifted(NamedTuple):
    """What a shift did. Accuracies are shares of 1; None where nothing was measured.

    ``before`` is the mean accuracy of the last rounds before the shift, ``dip`` how far the lowest
    accuracy after it lies below that (0 if it never fell below), ``rounds`` the number of rounds
    from the shift until accuracy was back and stayed (0: it never left; None: never).
    """

    round: int
    before: float | None
    dip: float | None
    rounds: int | None

    @property
    def recovered(self) -> bool:
        return self.rounds is not None


@dataclass(frozen=True)
class Recovery:
    """The rule. Back means within ``margin`` of the mean of the last ``window`` rounds before the
    shift (fewer if there are fewer, none from before the previous shift), for ``hold`` rounds or
    until the end or the next shift, whichever comes first.

    >>> curve = [0.9, 0.9, 0.5, 0.7, 0.9, 0.9]
    >>> Recovery().after(curve, 2, 6)
    Shifted(round=2, before=0.9, dip=0.4, rounds=2)
    """

    window: int = 50
    margin: float = 0.01
    hold: int = 10

    def all(self, accuracy: Sequence[float | None], shifts: Sequence[int]) -> list[Shifted]:
        """One entry a shift, in order; a shift at round 0 has no before and is left out."""
        starts = sorted({s for s in shifts if 0 < s < len(accuracy)})
        edges = [0, *starts, len(accuracy)]
        return [
            self.after(accuracy, start, edges[i + 2], edges[i]) for i, start in enumerate(starts)
        ]

    def after(
        self, accuracy: Sequence[float | None], start: int, end: int, since: int = 0
    ) -> Shifted:
        """The shift at round ``start``; the next is at ``end``, the one before was at ``since``."""
        first = max(since, start - self.window)
        earlier = [a for a in accuracy[first:start] if a is not None]
        later = [(i, a) for i, a in enumerate(accuracy[start:end]) if a is not None]
        if not earlier or not later:
            return Shifted(start, _mean(earlier), None, None)
        before = sum(earlier) / len(earlier)
        dip = max(0.0, before - min(a for _, a in later))
        return Shifted(start, before, round(dip, 12), self._rounds(later, before))

    def _rounds(self, later: list[tuple[int, float]], before: float) -> int | None:
        """The first round from which accuracy is back for long enough."""
        # a hair of slack, or 0.9 - 0.01 would not reach 0.89
        level = before - self.margin - 1e-12
        begun: int | None = None
        for index, value in later:
            if value < level:
                begun = None
                continue
            begun = index if begun is None else begun
            if index - begun + 1 >= self.hold:
                return begun
        return begun


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
