"""Which start is best right after members change."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import all_above, both, differences, standard_error, told
from shoal.reproduce.verdicts.dynamic_init.which import (
    BASELINES,
    FIRST,
    GREY,
    SECOND,
    after,
    grey_sets,
)


@claim("dyninit-01")
def beats_previous(cells: Cells) -> Verdict:
    """Proposed minus Previous above its standard error in every cell of Table 3's grey sets;
    partly: 90% of them."""
    return all_above(differences(grey_sets(cells), "Proposed", "Previous"), holds=1.0, partly=0.9)


@claim("dyninit-02")
def beats_average(cells: Cells) -> Verdict:
    """(a) Proposed minus Average above its standard error in every cell of the second transition;
    (b) above -1 point in every cell of the first. Partly: one of them."""
    grey = grey_sets(cells)
    second = differences(grey.of(scenario=SECOND), "Proposed", "Average")
    first = differences(grey.of(scenario=FIRST), "Proposed", "Average")
    return both(("a", all_above(second)), ("b", all_above(first, limit=-1.0)))


@claim("dyninit-03")
def printed_levels(cells: Cells) -> Verdict:
    """MNIST, FedAvg: at least 22 of the 24 cells of Proposed, Previous and Average within 2 points
    of print (the authors' window); partly: 16."""
    mine = cells.of(table="Table 3", dataset="MNIST", base_algorithm="FedAvg",
                    method=("Proposed", "Previous", "Average"),
                    name="post_transition_accuracy")  # fmt: skip
    gaps = [abs(r.difference) for r in mine if r.difference is not None]
    if len(gaps) < 24:
        return NOT_RUN
    near = sum(g <= 2.0 for g in gaps)
    numbers = f"{near} of {len(gaps)} within 2 points, largest gap {max(gaps):.2f}"
    return Verdict("holds" if near >= 22 else "partly" if near >= 16 else "fails", numbers)


@claim("dyninit-04")
def svhn(cells: Cells) -> Verdict:
    """SVHN: Proposed minus the best baseline above minus its standard error in every cell, and
    above its standard error in 90%."""
    gaps = differences(after(cells, "Table 3").of(dataset="SVHN"), "Proposed", *BASELINES)
    if not gaps:
        return NOT_RUN
    never_worse = all(g.mean > -g.error for g in gaps)
    clear = sum(g.mean > g.error for g in gaps)
    numbers = f"{clear} of {len(gaps)} clearly best; {told(gaps)}"
    good = never_worse and clear >= 0.9 * len(gaps)
    return Verdict("holds" if good else "fails", numbers)


@claim("dyninit-05")
def cifar(cells: Cells) -> Verdict:
    """CIFAR: Proposed the best of four starts by more than its standard error in every cell;
    partly: 70%."""
    gaps = differences(after(cells, "Table 1"), "Proposed", *BASELINES)
    verdict = all_above(gaps, holds=1.0, partly=0.7)
    split = [
        f"{name}: {sum(g.mean > 0 for g in part)} of {len(part)}"
        for name, part in (
            (name, [g for g in gaps if g.columns.get("scenario") == key])
            for name, key in (("first", FIRST), ("second", SECOND))
        )
    ]
    return Verdict(verdict.answer, f"{verdict.numbers}; {', '.join(split)}") if gaps else NOT_RUN


@claim("dyninit-06")
def news(cells: Cells) -> Verdict:
    """AG News: (a) Proposed minus Previous above its standard error in every cell, (b) Proposed
    minus Average above -1 point in every cell, (c) with overlap 0 Proposed minus Previous above 40
    points. Partly: one of them."""
    mine = Cells(tuple(r for t in ("Table 2", "Table 7") for r in after(cells, t)))
    previous = differences(mine, "Proposed", "Previous")
    disjoint = [g for g in previous if g.columns.get("overlap") == "0.0"]
    average = differences(mine, "Proposed", "Average")
    return both(
        ("a", all_above(previous)),
        ("b", all_above(average, limit=-1.0)),
        ("c", all_above(disjoint, limit=40.0)),
    )


@claim("dyninit-08")
def many_clients(cells: Cells) -> Verdict:
    """Table 5, grey sets: Proposed minus the best baseline above its standard error everywhere."""
    grey = after(cells, "Table 5").of(dataset=GREY)
    return all_above(differences(grey, "Proposed", *BASELINES), holds=1.0)


@claim("dyninit-09")
def plug_and_play(cells: Cells) -> Verdict:
    """For every base algorithm: the mean over cells of Proposed minus the best baseline above its
    standard error over cells, and Proposed best in 75% of the cells. Partly: for some of them."""
    grey = Cells((*grey_sets(cells), *after(cells, "Table 5").of(dataset=GREY)))
    parts = []
    for algorithm in grey.values("base_algorithm"):
        gaps = differences(grey.of(base_algorithm=algorithm), "Proposed", *BASELINES)
        if not gaps:
            continue
        values = [g.mean for g in gaps]
        mean, best = sum(values) / len(values), sum(v > 0 for v in values)
        good = mean > standard_error(values) and best >= 0.75 * len(values)
        parts.append((algorithm, good, f"{algorithm} best in {best} of {len(values)}, {mean:+.2f}"))
    if not parts:
        return NOT_RUN
    fine = [ok for _, ok, _ in parts]
    answer = "holds" if all(fine) else "partly" if any(fine) else "fails"
    return Verdict(answer, "; ".join(text for _, _, text in parts))  # type: ignore[arg-type]


@claim("dyninit-10")
def beats_continuous(cells: Cells) -> Verdict:
    """Proposed minus Continuous above its standard error in 95% of the cells, and 5 points or more
    on average. Partly: one of the two."""
    gaps = differences(grey_sets(cells), "Proposed", "Continuous")
    if not gaps:
        return NOT_RUN
    mean = sum(g.mean for g in gaps) / len(gaps)
    enough = Verdict("holds" if mean >= 5.0 else "fails", f"mean {mean:+.2f}")
    return both(("cells", all_above(gaps, holds=0.95)), ("mean", enough))


@claim("dyninit-11")
def other_splits(cells: Cells) -> Verdict:
    """Tables 8, 9 and 11, grey sets, ten rounds: Proposed above the better of Previous and Average
    in every cell, by more than its standard error in 90%."""
    tables = ("Table 8", "Table 9", "Table 11")
    mine = Cells(tuple(r for t in tables for r in after(cells, t, 10).of(dataset=GREY)))
    gaps = differences(mine, "Proposed", "Previous", "Average")
    if not gaps:
        return NOT_RUN
    above, clear = sum(g.mean > 0 for g in gaps), sum(g.mean > g.error for g in gaps)
    numbers = f"above in {above} of {len(gaps)}, clearly in {clear}; {told(gaps)}"
    good = above == len(gaps) and clear >= 0.9 * len(gaps)
    return Verdict("holds" if good else "fails", numbers)


@claim("dyninit-12")
def unseen_labels(cells: Cells) -> Verdict:
    """Table 12: Proposed minus the better baseline above -1 point in every cell."""
    gaps = differences(after(cells, "Table 12", 10), "Proposed", "Previous", "Average")
    return all_above(gaps, limit=-1.0)
