"""What is left of earlier tasks: the task matrix and the figures that are read off it.

``R[i][j]`` is the accuracy on task j after the last evaluated round of task i; tasks are counted
from 0, ``T`` is their number, and only ``j <= i`` (and ``j = i + 1``, see forward transfer) is
ever measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
