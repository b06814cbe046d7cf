"""Who is first, and what goes with what: helpers that several papers' verdicts share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict
from shoal.reproduce.counting import Gap, gap
from shoal.reproduce.results import Result


def one(cells: Cells, **wanted: str) -> Result | None:
    """The first figure that is as said, if any has a value."""
    return next((r for r in cells.of(**wanted) if r.mean is not None), None)


def lead(
    cells: Cells, name: str, *, without: Sequence[str] = (), smallest: bool = False
) -> Gap | None:
    """How far a method is ahead of the nearest other one (``smallest``: less is better).

    On the seeds that all of them have: a draw of the data can matter more than the method. Where
    another method diverged with a seed, it is behind with that one and counts with its others.
    """
    mine = one(cells, method=name)
    others = [r for r in cells if r.method not in (name, *without) and r.mean is not None]
    if mine is None or not others:
        return None
    mine, *others = on_common_seeds([mine, *others])
    gaps = [gap(other, mine) if smallest else gap(mine, other) for other in others]
    return min((g for g in gaps if g is not None), key=lambda g: g.mean, default=None)


def on_common_seeds(results: Sequence[Result]) -> list[Result]:
    """The figures with the seeds that all of them have, or diverged with; as they are if there is
    none."""
    common = set.intersection(*({*r.values, *r.diverged} for r in results))
    if not common:
        return list(results)
    return [replace(r, values={s: v for s, v in r.values.items() if s in common}) for r in results]


def leads(
    cells: Cells, name: str, by: str, *, without: Sequence[str] = (), smallest: bool = False
) -> list[Gap]:
    """:func:`lead` for every value of a column."""
    found = (
        lead(cells.of(**{by: value}), name, without=without, smallest=smallest)
        for value in cells.values(by)
    )
    return [g for g in found if g is not None]


def pair(cells: Cells, first: str, second: str) -> Gap | None:
    """One method's figure minus another's."""
    a, b = one(cells, method=first), one(cells, method=second)
    return gap(a, b) if a is not None and b is not None else None


def pairs(cells: Cells, first: str, second: str, by: str) -> list[Gap]:
    """:func:`pair` for every value of a column."""
    found = (pair(cells.of(**{by: value}), first, second) for value in cells.values(by))
    return [g for g in found if g is not None]


def between(cells: Cells, first: str, second: str, **wanted: str) -> Gap | None:
    """One figure of a cell minus another figure of the same cell."""
    a, b = one(cells, name=first, **wanted), one(cells, name=second, **wanted)
    return gap(a, b) if a is not None and b is not None else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties sharing their mean.

    >>> ranks([3.0, 1.0, 1.0])
    [3.0, 1.5, 1.5]
    """
    order = sorted(values)
    return [(2 * order.index(v) + order.count(v) + 1) / 2 for v in values]


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation; 0 where one of the two does not vary.

    >>> spearman([1.0, 2.0, 3.0], [9.0, 4.0, 1.0])
    -1.0
    """
    a, b = ranks(x), ranks(y)
    mean = (len(a) + 1) / 2
    top = sum((p - mean) * (q - mean) for p, q in zip(a, b, strict=True))
    square = sum((p - mean) ** 2 for p in a) * sum((q - mean) ** 2 for q in b)
    return float(top / square**0.5) if square else 0.0


def yes(good: bool, numbers: str) -> Verdict:
    return Verdict("holds" if good else "fails", numbers)


def shown(results: Iterable[Result], digits: int = 2) -> str:
    """``method value`` of each, in order."""
    return ", ".join(f"{r.method} {r.mean:.{digits}f}" for r in results if r.mean is not None)


def parts(
    named: Sequence[tuple[str, Verdict]], *, partly: int | None = None, needed: Sequence[str] = ()
) -> Verdict:
    """Several parts: holds if all do; partly if at least ``partly`` of them hold (half of them
    unless said), or if those ``needed`` do. One that was not run leaves the claim not run."""
    text = "; ".join(f"({name}) {v.answer}: {v.numbers}" for name, v in named)
    answers = {name: v.answer for name, v in named}
    if not named or "not run" in answers.values():
        return Verdict("not run", text) if text else NOT_RUN
    good = sum(a == "holds" for a in answers.values())
    if good == len(named):
        return Verdict("holds", text)
    least = -(-len(named) // 2) if partly is None else partly
    enough = all(answers[n] == "holds" for n in needed) if needed else good >= least
    if enough and (needed or good):
        return Verdict("partly", text)
    unclear = sum(a in ("undecided", "partly") for a in answers.values())
    if unclear and good + unclear >= least:
        return Verdict("undecided" if "undecided" in answers.values() else "partly", text)
    return Verdict("fails", text)
