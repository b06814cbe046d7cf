"""Rules as values, and what functions that decide claims share.

A *comparison* (``Over``, ``Lead``) gives paired differences of figures, seed by seed. A *rule*
(``Above``, ``AtLeast``, ``Near``, ``NeverWorse``, ``Correlates``) asks something of them, and
``AllOf`` and ``AlsoReport`` are made of rules. Every rule says in words what it does.

A difference is *clear* when it is beyond its standard error over paired seeds. With one seed there
is no standard error; it counts as 0, and the numbers say how many seeds there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scipy import stats

from shoal.papers.cells import CellResult
from shoal.papers.claims import NOT_RUN, Cells, ClaimRule, Verdict

Where = Mapping[str, str | Sequence[str]]  # what Cells.of takes
MOST = 0.5 + 1e-6  # a share: more than half


# ---- differences ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class PairedDifference:
    """A difference of two figures, the mean over the seeds that both have."""

    mean: float
    error: float  # standard error of the mean; 0 with one seed
    seeds: int
    columns: Mapping[str, str] = field(default_factory=dict)
    name: str = ""  # of the figure

    @property
    def clear(self) -> bool:
        """Above 0 by more than its standard error."""
        return self.mean > self.error

    def minus(self, other: PairedDifference) -> PairedDifference:
        """The difference of two independent differences."""
        error = (self.error**2 + other.error**2) ** 0.5
        return PairedDifference(self.mean - other.mean, error, self.seeds)


Differences = list[PairedDifference]


def difference(one: CellResult | None, other: CellResult | None) -> PairedDifference | None:
    """``one - other``, seed by seed; None where one of them or a common seed is missing."""
    if one is None or other is None:
        return None
    seeds = sorted(set(one.values) & set(other.values))
    found = [one.values[s] - other.values[s] for s in seeds]
    if not found:
        return None
    mean = sum(found) / len(found)
    return PairedDifference(mean, standard_error(found), len(seeds), one.columns, one.name)


def present(found: Iterable[PairedDifference | None]) -> Differences:
    """Those that there are."""
    return [d for d in found if d is not None]


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; 0 for a single value.

    >>> round(standard_error([1.0, 2.0, 3.0]), 6)
    0.57735
    """
    return float(stats.sem(values)) if len(values) > 1 else 0.0


def spearman(points: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; 0 where one of the two does not vary.

    >>> spearman([(1.0, 9.0), (2.0, 4.0), (3.0, 1.0)])
    -1.0
    """
    x, y = zip(*points, strict=True)
    if min(len(set(x)), len(set(y))) < 2:
        return 0.0
    return round(float(stats.spearmanr(x, y).statistic), 12)  # 0.9 must not be just below 0.9


def first(cells: Cells, **wanted: str) -> CellResult | None:
    """The first figure that is as said, if any has a value."""
    return next((r for r in cells.of(**wanted) if r.mean is not None), None)


def level(result: CellResult | None) -> float:
    """A figure's mean; 0 where there is none."""
    return 0.0 if result is None or result.mean is None else result.mean


def peak(points: Sequence[tuple[float, CellResult]]) -> tuple[float, bool]:
    """Where the largest figure is, and whether both ends are clearly lower."""
    best = max(points, key=lambda p: level(p[1]))
    ends = [difference(best[1], points[i][1]) for i in (0, -1)]
    return best[0], all(d is not None and d.clear for d in ends)


def lead(
    cells: Cells, name: str, *, without: Sequence[str] = (), smallest: bool = False
) -> PairedDifference | None:
    """How far a method is ahead of the nearest other one (``smallest``: less is better).

    On the seeds that all of them have: a draw of the data can matter more than the method. Where
    another method diverged with a seed, it is behind with that one and counts with its others.
    """
    mine = first(cells, method=name)
    others = [r for r in cells if r.method not in (name, *without) and r.mean is not None]
    if mine is None or not others:
        return None
    mine, *others = on_common_seeds([mine, *others])
    found = [difference(other, mine) if smallest else difference(mine, other) for other in others]
    return min(present(found), key=lambda d: d.mean, default=None)


def on_common_seeds(results: Sequence[CellResult]) -> list[CellResult]:
    """The figures with the seeds that all of them have, or diverged with; unchanged if there is no
    such seed."""
    common = set.intersection(*({*r.values, *r.diverged} for r in results))
    if not common:
        return list(results)
    return [replace(r, values={s: v for s, v in r.values.items() if s in common}) for r in results]


def pair(cells: Cells, one: str, other: str, column: str = "method") -> PairedDifference | None:
    """One method's figure minus another's (or of two values of another column)."""
    return difference(first(cells, **{column: one}), first(cells, **{column: other}))


def pairs(cells: Cells, one: str, other: str, by: str, column: str = "method") -> Differences:
    """:func:`pair` for every value of a column."""
    return present(pair(cells.of(**{by: value}), one, other, column) for value in cells.values(by))


def between(cells: Cells, one: str, other: str, **wanted: str) -> PairedDifference | None:
    """One figure of a cell minus another figure of the same cell."""
    return difference(first(cells, name=one, **wanted), first(cells, name=other, **wanted))


def matched(cells: Cells, one: str, *others: str) -> Differences:
    """One method minus the best of others wherever all other columns are equal."""
    keyed = {_key(r, r.method): r for r in cells}
    out = []
    for result in cells.of(method=one):
        rivals = [keyed.get(_key(result, other)) for other in others]
        if all(r is not None and r.mean is not None for r in rivals):
            out.append(difference(result, max(rivals, key=level)))
    return present(out)


def _key(result: CellResult, method: str) -> tuple[tuple[str, str], ...]:
    place = f"{result.table}/{result.name}/{result.variant}"
    return tuple(sorted({**result.columns, "method": method, "": place}.items()))


# ---- words ---------------------------------------------------------------------------------------
def as_text(found: Sequence[PairedDifference]) -> str:
    """The range, the mean and the number of seeds.

    >>> as_text([PairedDifference(1.0, 0.1, 3), PairedDifference(3.0, 0.2, 3)])
    '+1.00 to +3.00, mean +2.00, 3 seeds'
    """
    if not found:
        return "no cells"
    values = [d.mean for d in found]
    seeds = min(d.seeds for d in found)
    mean = sum(values) / len(values)
    word = "seed" if seeds == 1 else "seeds"
    return f"{min(values):+.2f} to {max(values):+.2f}, mean {mean:+.2f}, {seeds} {word}"


def joined(words: Sequence[str], last: str = "and") -> str:
    """
    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end


def _place(where: Where) -> str:
    """Which cells; tables and figures go without the column's name."""
    said = [
        ("" if column in ("table", "name") else f"{column} ")
        + joined([v] if isinstance(v, str) else list(v), "or")
        for column, v in where.items()
    ]
    return f" ({'; '.join(said)})" if said else ""


def _share(share: float, unit: str) -> str:
    if share >= 1.0:
        return f"every {unit}"
    return f"more than half of the {unit}s" if share == MOST else f"{share:.0%} of the {unit}s"


# ---- deciding ------------------------------------------------------------------------------------
def decide(good: bool, numbers: str, partly: bool = False) -> Verdict:
    return Verdict("holds" if good else "partly" if partly else "fails", numbers)


def all_above(
    found: Sequence[PairedDifference],
    *,
    limit: float = 0.0,
    holds: float = 1.0,
    partly: float | None = None,
) -> Verdict:
    """Whether the share of differences above ``limit`` reaches ``holds`` (or ``partly``).

    A difference within its standard error of the limit is unclear: the answer is undecided where it
    depends on how those would come out.
    """
    if not found:
        return NOT_RUN
    sure = sum(d.mean - limit > d.error for d in found)
    possible = sum(d.mean - limit >= -d.error and d.mean != limit for d in found)
    return from_shares(sure, possible, len(found), holds, partly, as_text(found))


def from_shares(
    sure: int, possible: int, count: int, holds: float, partly: float | None, numbers: str
) -> Verdict:
    """The answer for the clear cells, unless the unclear ones could lead to another."""

    def answer(clear: int) -> Verdict:
        share = clear / count + 1e-9
        return decide(share >= holds, said, partly is not None and share >= partly)

    said = f"{sure} of {count} clearly ({max(0, possible - sure)} unclear); {numbers}"
    low, high = answer(sure), answer(max(sure, possible))
    return low if low == high else Verdict("undecided", said)


def combined(
    named: Sequence[tuple[str, Verdict]],
    *,
    partly: int | None = None,
    needed: Sequence[str] = (),
    open: bool = False,
) -> Verdict:
    """Several parts: holds if all do; partly if at least ``partly`` of them hold (half of them
    unless said), or if those ``needed`` do. One that was not run leaves the claim not run.

    ``open``: a part that is undecided leaves the claim undecided unless another part fails.
    """
    text = "; ".join(f"({name}) {v.answer}: {v.numbers}" for name, v in named)
    answers = {name: v.answer for name, v in named}
    if not named or "not run" in answers.values():
        return Verdict("not run", text) if text else NOT_RUN
    good = sum(a == "holds" for a in answers.values())
    if good == len(named):
        return Verdict("holds", text)
    if open and "undecided" in answers.values() and "fails" not in answers.values():
        return Verdict("undecided", text)
    least = -(-len(named) // 2) if partly is None else partly
    enough = all(answers[n] == "holds" for n in needed) if needed else good >= least
    if enough and (needed or good):
        return Verdict("partly", text)
    unclear = sum(a == "partly" or (a == "undecided" and not open) for a in answers.values())
    if unclear and good + unclear >= least:
        still = "undecided" in answers.values() and not open
        return Verdict("undecided" if still else "partly", text)
    return Verdict("fails", text)


def also(verdict: Verdict, text: str) -> Verdict:
    """A verdict with something reported after its numbers; nothing is added to one not run."""
    if not text or verdict.answer == "not run":
        return verdict
    return Verdict(verdict.answer, f"{verdict.numbers}; {text}")


# ---- comparisons ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Over:
    """One method minus the best of others: per value of the column ``by``, or (without one)
    wherever all other columns are equal. Per value there is one other method."""

    one: str
    others: tuple[str, ...]
    by: str = ""
    column: str = "method"  # which ``one`` and ``others`` are values of, where there is a ``by``

    def differences(self, cells: Cells) -> Differences:
        if self.by:
            (other,) = self.others
            return pairs(cells, self.one, other, self.by, self.column)
        return matched(cells, self.one, *self.others)

    def describe(self) -> str:
        rivals = joined(self.others)
        return f"{self.one} minus {f'the best of {rivals}' if len(self.others) > 1 else rivals}"


@dataclass(frozen=True)
class Lead:
    """How far a method is ahead of the nearest other one, per value of a column."""

    method: str
    by: str
    without: tuple[str, ...] = ()

    def differences(self, cells: Cells) -> Differences:
        groups = (cells.of(**{self.by: value}) for value in cells.values(self.by))
        return present(lead(c, self.method, without=self.without) for c in groups)

    def describe(self) -> str:
        left_out = f" ({joined(self.without)} not counted)" if self.without else ""
        return f"{self.method} minus the best other method{left_out}"


MethodComparison = Over | Lead  # each has its words, and the column that it goes by


# ---- rules ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Above:
    """Differences above a limit by more than their standard error, in a share of the cells."""

    comparison: MethodComparison
    where: Where = field(default_factory=dict)
    limit: float = 0.0
    holds: float = 1.0
    partly: float | None = None

    def decide(self, cells: Cells) -> Verdict:
        found = self.comparison.differences(cells.of(**self.where))
        return all_above(found, limit=self.limit, holds=self.holds, partly=self.partly)

    def describe(self) -> str:
        unit = self.comparison.by or "cell"
        limit = f"{self.limit:g} by more than " if self.limit else ""
        rest = "" if self.partly is None else f"; partly: in {_share(self.partly, unit)}"
        return (f"{self.comparison.describe()} above {limit}its standard error in "
                f"{_share(self.holds, unit)}{_place(self.where)}{rest}")  # fmt: skip


@dataclass(frozen=True)
class AtLeast:
    """No difference below some points."""

    comparison: MethodComparison
    where: Where
    points: float
    partly: float | None = None

    def decide(self, cells: Cells) -> Verdict:
        found = self.comparison.differences(cells.of(**self.where))
        if not found:
            return NOT_RUN
        least = min(d.mean for d in found)
        some = self.partly is not None and least >= self.partly
        return decide(least >= self.points, as_text(found), some)

    def describe(self) -> str:
        rest = "" if self.partly is None else f"; partly: {self.partly:g}"
        return (f"{self.comparison.describe()} at least {self.points:g} points in every "
                f"{self.comparison.by or 'cell'}{_place(self.where)}{rest}")  # fmt: skip


@dataclass(frozen=True)
class Near:
    """No difference larger than some points; with ``positive`` none may be negative or 0."""

    comparison: MethodComparison
    where: Where
    points: float
    positive: bool = False

    def decide(self, cells: Cells) -> Verdict:
        found = self.comparison.differences(cells.of(**self.where))
        if not found:
            return NOT_RUN
        good = all(abs(d.mean) <= self.points and (d.mean > 0 or not self.positive) for d in found)
        return decide(good, as_text(found))

    def describe(self) -> str:
        range_ = "above 0 and at most" if self.positive else "at most (either way)"
        return (f"{self.comparison.describe()} {range_} {self.points:g} points in every "
                f"{self.comparison.by or 'cell'}{_place(self.where)}")  # fmt: skip


@dataclass(frozen=True)
class NeverWorse:
    """No difference below minus its standard error, and a share of them above it."""

    comparisons: tuple[MethodComparison, ...]
    where: Where
    clear: float = 0.0

    def decide(self, cells: Cells) -> Verdict:
        mine = cells.of(**self.where)
        found = [d for c in self.comparisons for d in c.differences(mine)]
        if not found:
            return NOT_RUN
        enough = sum(d.clear for d in found) >= self.clear * len(found)
        return decide(enough and all(d.mean > -d.error for d in found), as_text(found))

    def describe(self) -> str:
        unit = self.comparisons[0].by or "cell"
        clear = f" and above +SE in {_share(self.clear, unit)}" if self.clear else ""
        said = "; ".join(c.describe() for c in self.comparisons)
        return f"{said}: above -SE in every {unit}{clear}{_place(self.where)}"


@dataclass(frozen=True)
class Correlates:
    """The rank correlation of a figure with a column of numbers is beyond a limit, which is below 0
    where the figure must fall."""

    column: str
    where: Where
    limit: float
    least: int = 1  # points
    counted: str = ""  # what the points are called, if their number is to be said

    def decide(self, cells: Cells) -> Verdict:
        found = (r for r in cells.of(**self.where) if r.mean is not None)
        return self.of([(float(r.columns[self.column]), level(r)) for r in found])

    def of(self, points: Sequence[tuple[float, float]]) -> Verdict:
        """The verdict on points that are known."""
        if len(points) < self.least:
            return NOT_RUN
        rho = spearman(points)
        over = f" over {len(points)} {self.counted}" if self.counted else ""
        return decide(rho >= self.limit if self.limit > 0 else rho <= self.limit,
                      f"{rho:+.2f}{over}")  # fmt: skip

    def describe(self) -> str:
        least = "at least" if self.limit > 0 else "at most"
        return f"rank correlation with {self.column}{_place(self.where)} {least} {self.limit:g}"


@dataclass(frozen=True)
class AllOf:
    """Several named rules; see :func:`combined`."""

    rules: Mapping[str, ClaimRule]
    partly: int | None = None
    needed: tuple[str, ...] = ()
    open: bool = False

    def decide(self, cells: Cells) -> Verdict:
        named = [(name, rule.decide(cells)) for name, rule in self.rules.items()]
        if all(verdict == NOT_RUN for _, verdict in named):
            return NOT_RUN
        return combined(named, partly=self.partly, needed=self.needed, open=self.open)

    def describe(self) -> str:
        said = "; ".join(f"({name}) {rule.describe()}" for name, rule in self.rules.items())
        least = -(-len(self.rules) // 2) if self.partly is None else self.partly
        some = joined([f"({n})" for n in self.needed]) if self.needed else f"{least} of them"
        unless = ", and none of the others undecided" if self.open else ""
        return f"{said}. Partly: {some}{unless}"


@dataclass(frozen=True)
class AlsoReport:
    """A rule, and differences that are reported with its numbers but decide nothing."""

    rule: ClaimRule
    label: str
    comparison: MethodComparison
    where: Where

    def decide(self, cells: Cells) -> Verdict:
        found = self.comparison.differences(cells.of(**self.where))
        return also(self.rule.decide(cells), f"{self.label} {as_text(found)}" if found else "")

    def describe(self) -> str:
        return (f"{self.rule.describe()}. Reported, not counted: "
                f"{self.comparison.describe()}{_place(self.where)}")  # fmt: skip


def shown(results: Iterable[CellResult], digits: int = 2) -> str:
    """``method value`` of each, in order."""
    return ", ".join(f"{r.method} {r.mean:.{digits}f}" for r in results if r.mean is not None)


def rounds_until(accuracy: Sequence[float | None], level: float) -> int:
    """Rounds until an accuracy is reached; one more than there are if it never is."""
    found = (n for n, a in enumerate(accuracy, 1) if a is not None and a >= level)
    return next(found, len(accuracy) + 1)
