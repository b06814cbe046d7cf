"""How long it took to get somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Reached(NamedTuple):
    """Rounds played and seconds spent up to and with the first round that is good enough; None
    where no round is."""

    rounds: int | None
    seconds: float | None


def to_target(accuracy: Sequence[float | None], seconds: Sequence[float], target: float) -> Reached:
    """The first round whose accuracy is at least ``target``.

    >>> to_target([0.1, None, 0.6], [1.0, 1.0, 2.0], 0.5)
    Reached(rounds=3, seconds=4.0)
    """
    for index, value in enumerate(accuracy):
        if value is not None and value >= target:
            return Reached(index + 1, sum(seconds[: index + 1]))
    return Reached(None, None)


def to_best(accuracy: Sequence[float | None], seconds: Sequence[float]) -> Reached:
    """The first round with the highest accuracy of the run."""
    known = [a for a in accuracy if a is not None]
    return to_target(accuracy, seconds, max(known)) if known else Reached(None, None)
