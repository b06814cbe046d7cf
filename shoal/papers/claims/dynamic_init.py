"""Claims about sessions that start from a similarity-weighted mix (dynamic-init).

Accuracies are the honest mean of the first rounds after a transition, unless a rule says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from shoal.papers.cells import CellResult
from shoal.papers.claims import Cells, Verdict, claim, needed, register
from shoal.papers.claims.rules import (
    Above,
    AllOf,
    AlsoReport,
    NeverWorse,
    Over,
    PairedDifference,
    Where,
    all_above,
    also,
    as_text,
    combined,
    decide,
    from_shares,
    matched,
    standard_error,
)
from shoal.papers.measures.curves import session_rounds

GREY = ("MNIST", "Fashion-MNIST")
BASELINES = ("Previous", "Average", "Continuous")
FIRST, SECOND = "session-transition-1", "session-transition-2"
FIVE, TEN = ("first 5 rounds after", "first 10 rounds after")
SWEEP = ("R=1", "R=3", "R=10", "R=30", "R=100", "R=300")

GREY_SETS: Where = {"table": "Table 3", "name": FIVE, "dataset": GREY}
NEWS: Where = {"table": ("Table 2", "Table 7"), "name": FIVE}
START_LOSS: Where = {"table": "Start loss"}
OVER_PREVIOUS = Over("Proposed", ("Previous",))
OVER_AVERAGE = Over("Proposed", ("Average",))
OVER_BOTH = Over("Proposed", ("Previous", "Average"))
OVER_ALL = Over("Proposed", BASELINES)

register(
    {
        "dyninit-01": Above(OVER_PREVIOUS, GREY_SETS, partly=0.9),
        "dyninit-02": AllOf(
            {
                "a": Above(OVER_AVERAGE, {**GREY_SETS, "scenario": SECOND}),
                "b": Above(OVER_AVERAGE, {**GREY_SETS, "scenario": FIRST}, limit=-1.0),
            },
            open=True,
        ),
        "dyninit-04": NeverWorse(
            (OVER_ALL,), {"table": "Table 3", "name": FIVE, "dataset": "SVHN"}, clear=0.9
        ),
        "dyninit-06": AllOf(
            {
                "a": Above(OVER_PREVIOUS, NEWS),
                "b": Above(OVER_AVERAGE, NEWS, limit=-1.0),
                "c": Above(OVER_PREVIOUS, {**NEWS, "overlap": "0.0"}, limit=40.0),
            },
            partly=1,
            open=True,
        ),
        "dyninit-08": Above(OVER_ALL, {"table": "Table 5", "name": FIVE, "dataset": GREY}),
        "dyninit-16": AlsoReport(  # loss before the first round of a session
            Above(Over("Previous", ("Proposed",)), START_LOSS),
            "Average minus Proposed",
            Over("Average", ("Proposed",)),
            START_LOSS,
        ),
        "dyninit-12": Above(OVER_BOTH, {"table": "Table 12", "name": TEN}, limit=-1.0),
    }
)


# ---- which start is best -------------------------------------------------------------------------
@claim("dyninit-03")
def printed_levels(cells: Cells) -> Verdict:
    """MNIST, FedAvg: at least 22 of the 24 cells of Proposed, Previous and Average within 2 points
    of print (the authors' window); partly: 16."""
    mine = cells.of(table="Table 3", dataset="MNIST", base_algorithm="FedAvg",
                    method=("Proposed", "Previous", "Average"),
                    name="post_transition_accuracy")  # fmt: skip
    gaps = needed([abs(r.difference) for r in mine if r.difference is not None], 24)
    near = sum(g <= 2.0 for g in gaps)
    numbers = f"{near} of {len(gaps)} within 2 points, largest gap {max(gaps):.2f}"
    return decide(near >= 22, numbers, near >= 16)


@claim("dyninit-05")
def cifar(cells: Cells) -> Verdict:
    """CIFAR: Proposed the best of four starts by more than its standard error in every cell;
    partly: 70%."""
    found = needed(OVER_ALL.differences(cells.of(table="Table 1", name=FIVE)))
    split = []
    for name, key in (("first", FIRST), ("second", SECOND)):
        here = [d.mean > 0 for d in found if d.columns.get("scenario") == key]
        split.append(f"{name}: {sum(here)} of {len(here)}")
    return also(all_above(found, partly=0.7), ", ".join(split))


@claim("dyninit-09")
def plug_and_play(cells: Cells) -> Verdict:
    """For every base algorithm: the mean over cells of Proposed minus the best baseline above its
    standard error over cells, and Proposed best in 75% of the cells. Partly: for some of them."""
    grey = cells.of(table=("Table 3", "Table 5"), name=FIVE, dataset=GREY)
    fine, text = [], []
    for algorithm in grey.values("base_algorithm"):
        values = [d.mean for d in OVER_ALL.differences(grey.of(base_algorithm=algorithm))]
        if values:
            mean, best = sum(values) / len(values), sum(v > 0 for v in values)
            fine.append(mean > standard_error(values) and best >= 0.75 * len(values))
            text.append(f"{algorithm} best in {best} of {len(values)}, {mean:+.2f}")
    return decide(all(needed(fine)), "; ".join(text), any(fine))


@claim("dyninit-10")
def beats_continuous(cells: Cells) -> Verdict:
    """Proposed minus Continuous above its standard error in 95% of the cells, and 5 points or more
    on average. Partly: one of the two."""
    found = needed(matched(cells.of(**GREY_SETS), "Proposed", "Continuous"))
    mean = sum(d.mean for d in found) / len(found)
    enough = decide(mean >= 5.0, f"mean {mean:+.2f}")
    return combined([("cells", all_above(found, holds=0.95)), ("mean", enough)], open=True)


@claim("dyninit-11")
def other_splits(cells: Cells) -> Verdict:
    """Tables 8, 9 and 11, grey sets, ten rounds: Proposed above the better of Previous and Average
    in every cell, by more than its standard error in 90%."""
    mine = cells.of(table=("Table 8", "Table 9", "Table 11"), name=TEN, dataset=GREY)
    found = needed(OVER_BOTH.differences(mine))
    above, clear = sum(d.mean > 0 for d in found), sum(d.clear for d in found)
    numbers = f"above in {above} of {len(found)}, clearly in {clear}; {as_text(found)}"
    return decide(above == len(found) and clear >= 0.9 * len(found), numbers)


# ---- what the method's pieces do -----------------------------------------------------------------
@claim("dyninit-13")
def scale_does_not_matter(cells: Cells) -> Verdict:
    """Best minus worst over R in 1, 3, 10, 30, 100, 300 at most 1.5 points at every transition of
    every setting. R = 0 must give Average and a huge R the nearest session (reported, not
    counted)."""
    sweep = cells.of(table="R sweep")
    places: dict[tuple[str, str, str], list[float]] = {}
    for r in sweep.of(method=SWEEP):
        if r.mean is not None:
            place = (r.name, r.dataset, r.columns.get("setting", ""))
            places.setdefault(place, []).append(r.mean)
    ranges = needed(
        [max(found) - min(found) for found in places.values() if len(found) == len(SWEEP)]
    )
    zero = [abs(d.mean) for d in matched(sweep, "R=0", "Average")]
    far = f"; R=0 against Average: at most {max(zero):.3f} apart" if zero else ""
    near = sum(r <= 1.5 for r in ranges)
    numbers = f"{near} of {len(ranges)} ranges at most 1.5, largest {max(ranges):.2f}{far}"
    return decide(near == len(ranges), numbers)


@claim("dyninit-14")
def pilot_helps(cells: Cells) -> Verdict:
    """Proposed minus Random Pilot positive in more than half of the cells, and on average above the
    standard error over cells."""
    mine = Cells((*cells.of(table="Pilot"), *cells.of(table="Table 14", name=TEN)))
    found = needed(matched(mine, "Proposed", "Random Pilot"))
    values = [d.mean for d in found]
    positive, mean = sum(v > 0 for v in values), sum(values) / len(values)
    good = positive > len(values) / 2 and mean > standard_error(values)
    return decide(good, f"positive in {positive} of {len(values)}; {as_text(found)}")


@claim("dyninit-15")
def recognises_groups(cells: Cells) -> Verdict:
    """The weight on past sessions of the same group above one half at every transition that has
    both groups behind it, and above 0.9 at half of them."""
    names = tuple(f"weight on the same group, transition {n}" for n in (1, 2, 3))
    shares = needed(cells.of(table="Table 3", name=names).figures())
    half, most = sum(s > 50.0 for s in shares), sum(s > 90.0 for s in shares)
    numbers = (
        f"above 0.5 in {half} and above 0.9 in {most} of {len(shares)} transitions; least "
        f"{min(shares) / 100:.3f}, median {median(shares) / 100:.3f}"
    )
    return decide(half == len(shares) and most >= len(shares) / 2, numbers)


@claim("dyninit-17")
def overlap_helps(cells: Cells) -> Verdict:
    """The gain over Previous, and over the best baseline, larger at an overlap above 0 than at 0 in
    more than half of the matched cells. Partly: one of the two."""
    named = []
    for name, comparison in (("over Previous", OVER_PREVIOUS), ("over the best", OVER_ALL)):
        found = comparison.differences(cells.of(table="Overlap"))
        zero = {_but_overlap(d): d for d in found if d.columns["overlap"] == "0.0"}
        more = [
            d.mean > zero[_but_overlap(d)].mean
            for d in found
            if d.columns["overlap"] != "0.0" and _but_overlap(d) in zero
        ]
        larger = sum(needed(more))
        answer = from_shares(larger, larger, len(more), 0.5 + 1e-6, None, "larger with overlap")
        named.append((name, answer))
    return combined(named, open=True)


def _but_overlap(found: PairedDifference) -> tuple[str, str, str]:
    return found.name, found.columns["dataset"], found.columns["base_algorithm"]


@claim("dyninit-18")
def footprint_of_less_data(cells: Cells) -> Verdict:
    """The footprint of half and of a quarter of all members' rows lies nearer to that of all rows
    than a third of the distance to the other group's footprint, in every case."""
    shares = needed(cells.of(table="Footprint").figures())
    near = sum(s < 100 / 3 for s in shares)
    numbers = (
        f"{near} of {len(shares)} below a third; {min(shares) / 100:.3f} to "
        f"{max(shares) / 100:.3f} of the distance to the other group"
    )
    return decide(near == len(shares), numbers)


# ---- whether the pilot and the probes pay for themselves -----------------------------------------
@claim("dyninit-19")
def pays_for_itself(cells: Cells) -> Verdict:
    """(a) The median of the rounds that Previous and Average need more than Proposed to reach its
    mean of the first five rounds exceeds the pilot's rounds over the three transitions, plus 1;
    (b) Previous needs 50 rounds or more in more than half of the transitions. Partly: one."""
    grey = cells.of(**GREY_SETS)
    saved: list[int] = []
    long: list[bool] = []
    extra = 0.0
    for result in grey.of(method="Proposed"):
        for seed in result.runs:
            extra = len(result.run_files(seed).sessions()[0]) / 3 + 1
        for rival in grey.of(method=("Previous", "Average")):
            if _but_method(result.columns) != _but_method(rival.columns):
                continue
            for own, other in _rounds(result, rival):
                saved.append(other - own)
                if rival.method == "Previous":
                    long.append(other >= 50)
    half = median(needed(saved))
    paid = decide(half > extra, f"median {half:g} rounds saved against {extra:.1f} spent")
    slow = decide(sum(long) > len(long) / 2, f"50 or more in {sum(long)} of {len(long)}")
    return combined([("a", paid), ("b", slow)], open=True)


def _but_method(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in columns.items() if name != "method"}


def _rounds(proposed: CellResult, rival: CellResult) -> list[tuple[int, int]]:
    """Rounds that Proposed and the rival need to reach the level, seed by seed; the length of the
    session if one never gets there."""
    session = -3 if proposed.columns["scenario"] == FIRST else -2
    out = []
    for seed in sorted(set(proposed.runs) & set(rival.runs) & set(proposed.values)):
        wanted = proposed.values[seed] / 100.0
        own, other = (_until(r, seed, session, wanted) for r in (proposed, rival))
        out.append((own, other))
    return out


def _until(result: CellResult, seed: int, session: int, wanted: float) -> int:
    run = result.run_files(seed)
    place = session_rounds(run, session)
    assert place is not None
    for count, number in enumerate(place, 1):
        accuracy = run.accuracy[number]
        if accuracy is not None and accuracy >= wanted:
            return count
    return len(place)
