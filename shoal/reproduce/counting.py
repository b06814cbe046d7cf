"""Counting cells: paired differences with their standard errors, and verdicts from shares.

A difference is *clear* when it is beyond its standard error over paired seeds. With one seed there
is no standard error; it counts as 0 and the numbers say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict
from shoal.reproduce.results import Result


@dataclass(frozen=True)
class Gap:
    """A difference of two figures, the mean over the seeds that both have."""

    mean: float
    error: float  # standard error of the mean; 0 with one seed
    seeds: int
    columns: dict[str, str]
    name: str = ""  # of the figure


def gap(one: Result, other: Result) -> Gap | None:
    """``one - other``, seed by seed."""
    seeds = sorted(set(one.values) & set(other.values))
    if not seeds:
        return None
    found = [one.values[s] - other.values[s] for s in seeds]
    return Gap(
        sum(found) / len(found), standard_error(found), len(seeds), dict(one.columns), one.name
    )


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 for a single value.

    >>> round(standard_error([1.0, 2.0, 3.0]), 6)
    0.57735
    """
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    squares = sum((v - mean) ** 2 for v in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))


def differences(cells: Cells, one: str, *others: str, column: str = "method") -> list[Gap]:
    """``one`` minus ``other`` (the best of several) wherever all else is equal."""
    keyed = {_key(r, column, r.columns.get(column, "")): r for r in cells}
    out = []
    for result in cells:
        if result.columns.get(column) != one:
            continue
        rivals = [keyed.get(_key(result, column, other)) for other in others]
        present = [r for r in rivals if r is not None and r.mean is not None]
        if len(present) < len(others):
            continue
        best = max(present, key=lambda r: r.mean or 0.0)
        found = gap(result, best)
        if found is not None:
            out.append(found)
    return out


def _key(result: Result, column: str, value: str) -> tuple[tuple[str, str], ...]:
    said = {**result.columns, column: value, "": f"{result.table}/{result.name}/{result.variant}"}
    return tuple(sorted(said.items()))


def all_above(
    gaps: Sequence[Gap], *, limit: float = 0.0, holds: float = 1.0, partly: float | None = None
) -> Verdict:
    """Whether the share of gaps above ``limit`` reaches ``holds`` (or ``partly``).

    A gap within its standard error of the limit is unclear: the answer is undecided where it
    depends on how those would come out.
    """
    if not gaps:
        return NOT_RUN
    sure = sum(g.mean - limit > g.error for g in gaps)
    possible = sum(g.mean - limit >= -g.error and g.mean != limit for g in gaps)
    return from_shares(sure, possible, len(gaps), holds, partly, told(gaps))


def from_shares(
    sure: int, possible: int, count: int, holds: float, partly: float | None, numbers: str
) -> Verdict:
    """The answer for the sure cells, unless the unclear ones could lead to another."""
    first, second = (_answer(n / count, holds, partly) for n in (sure, max(sure, possible)))
    said = f"{sure} of {count} clearly ({max(0, possible - sure)} unclear); {numbers}"
    return Verdict(first if first == second else "undecided", said)  # type: ignore[arg-type]


def _answer(share: float, holds: float, partly: float | None) -> str:
    if share >= holds - 1e-9:
        return "holds"
    return "partly" if partly is not None and share >= partly - 1e-9 else "fails"


def told(gaps: Sequence[Gap]) -> str:
    """The range, the mean and the number of seeds.

    >>> told([Gap(1.0, 0.1, 3, {}), Gap(3.0, 0.2, 3, {})])
    '+1.00 to +3.00, mean +2.00, 3 seeds'
    """
    if not gaps:
        return "no cells"
    values = [g.mean for g in gaps]
    seeds = min(g.seeds for g in gaps)
    mean = sum(values) / len(values)
    word = "seed" if seeds == 1 else "seeds"
    return f"{min(values):+.2f} to {max(values):+.2f}, mean {mean:+.2f}, {seeds} {word}"


def both(*verdicts: tuple[str, Verdict], partly: bool = True) -> Verdict:
    """All of several parts: holds if all hold, partly if one does (or is partly)."""
    answers = [v.answer for _, v in verdicts]
    if set(answers) == {"not run"}:
        return NOT_RUN
    numbers = "; ".join(f"({name}) {v.answer}: {v.numbers}" for name, v in verdicts)
    if "not run" in answers:
        return Verdict("not run", numbers)
    if all(a == "holds" for a in answers):
        return Verdict("holds", numbers)
    if "undecided" in answers and "fails" not in answers:
        return Verdict("undecided", numbers)
    some = partly and any(a in ("holds", "partly") for a in answers)
    return Verdict("partly" if some else "fails", numbers)
