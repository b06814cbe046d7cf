"""Dips, recovery, detection delay; what is left of earlier tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# ---- recovery ------------------------------------------------------------------------------------
# How far accuracy falls after a shift, and how long it takes to come back.


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


# ---- detection -----------------------------------------------------------------------------------
# Whether a detector notices what changed, and how soon.


class Detection(NamedTuple):
    """``precision`` is the share of the notices that are hits, ``recall`` the share of the shifts
    that are noticed (None: there were none), ``delay`` the mean number of rounds from a shift to
    its hit (0: noticed at the end of the very round it came in)."""

    shifts: int
    notices: int
    hits: int
    precision: float | None
    recall: float | None
    delay: float | None


def detection(
    shifts: Sequence[int], notices: Sequence[int], rounds: int, window: int | None = None
) -> Detection:
    """The first notice from a shift on, before the next shift and less than ``window`` rounds
    after it (None: no limit), is its hit. Every other notice is a false alarm, the second for one
    shift too. A shift in round 0 is the start, and none.

    >>> detection([10, 20], [5, 12, 13, 21], 30)
    Detection(shifts=2, notices=4, hits=2, precision=0.5, recall=1.0, delay=1.5)
    """
    starts = sorted({s for s in shifts if 0 < s < rounds})
    delays = []
    for start, following in zip(starts, [*starts[1:], rounds], strict=False):
        end = following if window is None else min(following, start + window)
        first = next((n for n in sorted(notices) if start <= n < end), None)
        if first is not None:
            delays.append(first - start)
    hits = len(delays)
    return Detection(
        len(starts),
        len(notices),
        hits,
        hits / len(notices) if notices else None,
        hits / len(starts) if starts else None,
        sum(delays) / hits if hits else None,
    )


# ---- continual -----------------------------------------------------------------------------------
# What is left of earlier tasks: the task matrix and the figures that are read off it.
#
# ``R[i][j]`` is the accuracy on task j after the last evaluated round of task i; tasks are counted
# from 0, ``T`` is their number, and only ``j <= i`` (and ``j = i + 1``, see forward transfer) is
# ever measured.

Row = Sequence[float | None]
Matrix = Sequence[Row]


def task_matrix(records: Iterable[Mapping[str, Any]]) -> list[list[float | None]]:
    """``R`` from the records of a run: ``tasks`` of the last evaluated round of every stage.

    >>> a = {"task": 0, "tasks": {"task 0": 0.9}}
    >>> b = {"task": 1, "tasks": {"task 0": 0.5, "task 1": 0.8}}
    >>> task_matrix([a, b])
    [[0.9, None], [0.5, 0.8]]
    """
    last: dict[int, Mapping[str, float | None]] = {}
    for record in records:
        if record.get("tasks"):
            last[int(record["task"])] = record["tasks"]
    count = 1 + max(last, default=-1)
    return [[last.get(i, {}).get(f"task {j}") for j in range(count)] for i in range(count)]


def average_accuracy(final: Row) -> float | None:
    """``ACC = (1/T) sum_j R[T-1][j]``, of the last row.

    >>> average_accuracy([0.5, 0.8])
    0.65
    """
    known = [v for v in final if v is not None]
    return sum(known) / len(known) if known and len(known) == len(final) else None


def drops(matrix: Matrix) -> list[float] | None:
    """``R[j][j] - R[T-1][j]`` of every task but the last."""
    if len(matrix) < 2:
        return None
    found = [(matrix[j][j], matrix[-1][j]) for j in range(len(matrix) - 1)]
    known = [then - now for then, now in found if then is not None and now is not None]
    return known if len(known) == len(found) else None


def backward_transfer(matrix: Matrix) -> float | None:
    """``BWT = 1/(T-1) sum_{j<T-1} (R[T-1][j] - R[j][j])``; below 0 is forgetting.

    >>> round(backward_transfer([[0.9, None], [0.5, 0.8]]), 12)
    -0.4
    """
    lost = drops(matrix)
    return None if lost is None else -sum(lost) / len(lost)


def worst_drop(matrix: Matrix) -> float | None:
    """``max_{j<T-1} (R[j][j] - R[T-1][j])``; below 0 if every earlier task got better."""
    lost = drops(matrix)
    return None if lost is None else max(lost)


def forward_transfer(ahead: Sequence[tuple[float, float]]) -> float | None:
    """``FWT = 1/(T-1) sum_{j>=1} (R[j-1][j] - b_j)``: pairs of the accuracy on task j just before
    it begins and ``b_j``, that of the model the run began with.

    >>> round(forward_transfer([(0.3, 0.1), (0.2, 0.1)]), 12)
    0.15
    """
    return sum(r - b for r, b in ahead) / len(ahead) if ahead else None


def continual(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """All of them, or None for a run without several tasks."""
    matrix = task_matrix(records)
    if len(matrix) < 2:
        return None
    ahead = [
        (pair["accuracy"], pair["untrained"])
        for record in records
        for pair in (record.get("ahead") or {}).values()
        if pair["accuracy"] is not None
    ]
    complete = len(ahead) == len(matrix) - 1
    return {
        "matrix": matrix,
        "acc": average_accuracy(matrix[-1]),
        "bwt": backward_transfer(matrix),
        "worst_drop": worst_drop(matrix),
        "fwt": forward_transfer(ahead) if complete else None,
    }
