"""What the method's pieces do: the scale, the pilot, the footprint, the overlap of label sets."""

from __future__ import annotations

from statistics import median

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import (
    Gap,
    all_above,
    both,
    differences,
    from_shares,
    standard_error,
    told,
)
from shoal.reproduce.verdicts.dynamic_init.which import BASELINES, after

SWEEP = ("R=1", "R=3", "R=10", "R=30", "R=100", "R=300")


@claim("dyninit-13")
def scale_does_not_matter(cells: Cells) -> Verdict:
    """Best minus worst over R in 1, 3, 10, 30, 100, 300 at most 1.5 points at every transition of
    every setting. R = 0 must give Average and a huge R the nearest session (told, not counted)."""
    sweep = cells.of(table="R sweep")
    ranges = []
    for name in sweep.values("name"):
        for data in sweep.values("dataset"):
            for setting in sweep.values("setting"):
                mine = sweep.of(name=name, dataset=data, setting=setting, method=SWEEP)
                found = [r.mean for r in mine if r.mean is not None]
                if len(found) == len(SWEEP):
                    ranges.append(max(found) - min(found))
    if not ranges:
        return NOT_RUN
    zero = [abs(g.mean) for g in differences(sweep, "R=0", "Average")]
    far = f"; R=0 against Average: at most {max(zero):.3f} apart" if zero else ""
    near = sum(r <= 1.5 for r in ranges)
    numbers = f"{near} of {len(ranges)} ranges at most 1.5, largest {max(ranges):.2f}{far}"
    return Verdict("holds" if near == len(ranges) else "fails", numbers)


@claim("dyninit-14")
def pilot_helps(cells: Cells) -> Verdict:
    """Proposed minus Random Pilot positive in more than half of the cells, and on average above the
    standard error over cells."""
    mine = Cells((*cells.of(table="Pilot"), *after(cells, "Table 14", 10)))
    gaps = differences(mine, "Proposed", "Random Pilot")
    if not gaps:
        return NOT_RUN
    values = [g.mean for g in gaps]
    positive, mean = sum(v > 0 for v in values), sum(values) / len(values)
    good = positive > len(values) / 2 and mean > standard_error(values)
    numbers = f"positive in {positive} of {len(values)}; {told(gaps)}"
    return Verdict("holds" if good else "fails", numbers)


@claim("dyninit-15")
def recognises_groups(cells: Cells) -> Verdict:
    """The weight on past sessions of the same group above one half at every transition that has
    both groups behind it, and above 0.9 at half of them."""
    names = tuple(f"weight on the same group, transition {n}" for n in (1, 2, 3))
    shares = [v for r in cells.of(table="Table 3", name=names) for v in r.values.values()]
    if not shares:
        return NOT_RUN
    half, most = sum(s > 50.0 for s in shares), sum(s > 90.0 for s in shares)
    good = half == len(shares) and most >= len(shares) / 2
    numbers = (
        f"above 0.5 in {half} and above 0.9 in {most} of {len(shares)} transitions; least "
        f"{min(shares) / 100:.3f}, median {median(shares) / 100:.3f}"
    )
    return Verdict("holds" if good else "fails", numbers)


@claim("dyninit-16")
def smaller_start_loss(cells: Cells) -> Verdict:
    """Loss on the active clients before the first round of a session: Previous minus Proposed above
    its standard error at every transition. Average is told beside it."""
    mine = cells.of(table="Start loss")
    gaps = differences(mine, "Previous", "Proposed")
    verdict = all_above(gaps)
    if not gaps:
        return NOT_RUN
    average = differences(mine, "Average", "Proposed")
    return Verdict(verdict.answer, f"{verdict.numbers}; Average minus Proposed {told(average)}")


@claim("dyninit-17")
def overlap_helps(cells: Cells) -> Verdict:
    """The gain over Previous, and over the best baseline, larger at an overlap above 0 than at 0 in
    more than half of the matched cells. Partly: one of the two."""
    mine = cells.of(table="Overlap")
    parts = []
    for name, rivals in (("over Previous", ("Previous",)), ("over the best", BASELINES)):
        gaps = differences(mine, "Proposed", *rivals)
        pairs = [(g, z) for g in gaps for z in gaps if _same_but_overlap(g, z)]
        if not pairs:
            return NOT_RUN
        larger = sum(g.mean > z.mean for g, z in pairs)
        answer = from_shares(larger, larger, len(pairs), 0.5 + 1e-6, None, "larger with overlap")
        parts.append((name, answer))
    return both(*parts)


def _same_but_overlap(one: Gap, zero: Gap) -> bool:
    if zero.columns["overlap"] != "0.0" or one.columns["overlap"] == "0.0":
        return False
    same = ("dataset", "base_algorithm")
    return one.name == zero.name and all(one.columns[k] == zero.columns[k] for k in same)


@claim("dyninit-18")
def footprint_of_less_data(cells: Cells) -> Verdict:
    """The footprint of half and of a quarter of everybody's rows lies nearer to that of all rows
    than a third of the distance to the other group's footprint, in every case."""
    mine = cells.of(table="Footprint")
    shares = [v for r in mine for v in r.values.values()]
    if not shares:
        return NOT_RUN
    near = sum(s < 100 / 3 for s in shares)
    numbers = (
        f"{near} of {len(shares)} below a third; {min(shares) / 100:.3f} to "
        f"{max(shares) / 100:.3f} of the distance to the other group"
    )
    return Verdict("holds" if near == len(shares) else "fails", numbers)
