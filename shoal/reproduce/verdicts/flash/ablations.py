"""Verdicts on early stopping, the share of drifting clients and the drift that returns."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import all_above, told
from shoal.reproduce.verdicts.ranking import between, lead, parts, spearman, yes

FIXED = ("E=1", "E=3", "E=5", "E=7", "E=10")
GLOBAL = "global dip in means of 10 rounds"


@claim("flash-17")
def early_stopping_wins(cells: Cells) -> Verdict:
    """(a) Local accuracy before the drift above that of the best fixed E by more than its standard
    error and by at least 1 point; (b) the dip above that of every fixed E."""
    mine = cells.of(table="Early stopping", method=("early stopping", *FIXED))
    quiet = lead(mine.of(name="local accuracy before the drift"), "early stopping")
    dips = [lead(mine.of(name=n), "early stopping") for n in ("local dip", GLOBAL)]
    if quiet is None or any(g is None for g in dips):
        return NOT_RUN
    found = [g for g in dips if g is not None]
    enough = yes(quiet.mean > quiet.error and quiet.mean >= 1.0, told([quiet]))
    return parts([("a", enough), ("b", all_above(found))])


@claim("flash-18")
def more_drift_deeper_dip(cells: Cells) -> Verdict:
    """Dip against the share of drifting clients: rank correlation at most -0.9 (global model, means
    of ten rounds; local told); at shares 0.1 and 0.2 the final accuracy is within 2 points of
    before."""
    mine = cells.of(table="Share", method="FLASH")
    named = []
    for name in (GLOBAL, "local dip"):
        found = [
            (float(r.columns["share"]), r.mean) for r in mine.of(name=name) if r.mean is not None
        ]
        if len(found) < 5:
            return NOT_RUN
        rho = spearman([f[0] for f in found], [f[1] for f in found])
        named.append((name, yes(rho <= -0.9, f"{rho:+.2f}")))
    small = [
        between(mine.of(share=s), "global accuracy before the drift", "final global accuracy")
        for s in ("0.1", "0.2")
    ]
    near = [g for g in small if g is not None]
    absorbed = yes(bool(near) and all(g.mean <= 2.0 for g in near), told(near))
    verdict = parts([named[0], ("absorbed", absorbed)])
    return Verdict(verdict.answer, f"{verdict.numbers}; local: {named[1][1].numbers}")


@claim("flash-20")
def second_dip_is_smaller(cells: Cells) -> Verdict:
    """The return of the old labels dips less than the first drift, by more than the standard error,
    for three quarters of the methods; FLASH is the best method but the Oracle at both. Local
    models, equal work."""
    mine = cells.of(table="Recurrent", variant="paper")
    gaps = [
        g
        for method in mine.values("method")
        if (g := between(mine, "second dip", "first dip", method=method)) is not None
    ]
    if not gaps:
        return NOT_RUN
    tops = [
        lead(mine.of(name=n), "FLASH", without=("Oracle",)) for n in ("first dip", "second dip")
    ]
    best = all_above([g for g in tops if g is not None])
    return parts([("smaller", all_above(gaps, holds=0.75)), ("FLASH best", best)])
