"""Whether the pilot and the probes pay for themselves."""

from __future__ import annotations

from statistics import median

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import both
from shoal.reproduce.measures.transitions import session_rounds
from shoal.reproduce.results import Result
from shoal.reproduce.verdicts.dynamic_init.which import FIRST, grey_sets


@claim("dyninit-19")
def pays_for_itself(cells: Cells) -> Verdict:
    """(a) The median of the rounds that Previous and Average need more than Proposed to reach its
    mean of the first five rounds exceeds the pilot's rounds over the three transitions, plus 1;
    (b) Previous needs 50 rounds or more in more than half of the transitions. Partly: one."""
    grey = grey_sets(cells)
    saved: list[int] = []
    long: list[bool] = []
    extra = 0.0
    for result in grey.of(method="Proposed"):
        for seed in result.runs:
            extra = len(result.reading(seed).sessions()[0]) / 3 + 1
        for rival in grey.of(method=("Previous", "Average")):
            if not _same_cell(result, rival):
                continue
            for own, other in _rounds(result, rival):
                saved.append(other - own)
                if rival.method == "Previous":
                    long.append(other >= 50)
    if not long:
        return NOT_RUN
    half = median(saved)
    first = Verdict("holds" if half > extra else "fails",
                    f"median {half:g} rounds saved against {extra:.1f} spent")  # fmt: skip
    second = Verdict("holds" if sum(long) > len(long) / 2 else "fails",
                     f"50 or more in {sum(long)} of {len(long)}")  # fmt: skip
    return both(("a", first), ("b", second))


def _same_cell(one: Result, other: Result) -> bool:
    return all(one.columns[k] == other.columns.get(k) for k in one.columns if k != "method")


def _rounds(proposed: Result, rival: Result) -> list[tuple[int, int]]:
    """Rounds that Proposed and the rival need to reach the level, seed by seed; the length of the
    session if one never gets there."""
    session = -3 if proposed.columns["scenario"] == FIRST else -2
    out = []
    for seed in sorted(set(proposed.runs) & set(rival.runs) & set(proposed.values)):
        level = proposed.values[seed] / 100.0
        out.append((_until(proposed, seed, session, level), _until(rival, seed, session, level)))
    return out


def _until(result: Result, seed: int, session: int, level: float) -> int:
    run = result.reading(seed)
    place = session_rounds(run, session)
    assert place is not None
    for count, number in enumerate(place):
        accuracy = run.accuracy[number]
        if accuracy is not None and accuracy >= level:
            return count + 1
    return len(place)
