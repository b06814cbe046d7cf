"""FLASH's claims.

Dips and recoveries are decided with equal local work (variant ``paper``), for local models and for
the global model (means of ten rounds); the printed set-up (variant ``authors``: baselines train one
epoch) is reported next to them. What FLASH's server does inside is read from the Synthetic runs of
Table 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.papers.claims import (
    NOT_RUN,
    ByFunction,
    Cells,
    ClaimRule,
    Verdict,
    claim,
    needed,
    register,
)
from shoal.papers.claims.rules import (
    MOST,
    Above,
    AllOf,
    AtLeast,
    Correlates,
    Differences,
    Lead,
    Near,
    NeverWorse,
    Over,
    PairedDifference,
    Where,
    all_above,
    also,
    as_text,
    between,
    combined,
    decide,
    difference,
    first,
    lead,
    level,
    pair,
    pairs,
    present,
    rounds_until,
    standard_error,
)

ALL_VARIANTS = True  # equal work and the printed set-up are variants, reported side by side

LOCAL, GLOBAL = "accuracy_dip", "global dip in means of 10 rounds"
DIPS = (LOCAL, GLOBAL)
BACK = ("local recovery within 2 points", "global recovery within 2 points")
BEFORE = {LOCAL: "local accuracy before the drift", GLOBAL: "global accuracy before the drift"}
EQUAL, PRINTED = "paper", "authors"
ORACLE = ("Oracle",)
SUDDEN: Where = {"table": "Table 7"}
GRADUAL: Where = {"table": "Table 2"}
DRIFTS: Where = {"table": ("Table 7", "Table 2")}
QUIET: Where = {
    "table": ("Table 1", "Table 3", "Table 4"), "name": "generalized_accuracy", "variant": EQUAL,
}  # fmt: skip
QUIET_GLOBAL: Where = {**QUIET, "name": "global accuracy"}
SYNTHETIC: Where = {"table": "Table 7", "task": "Synthetic", "variant": EQUAL}
SUDDEN_EQUAL: Where = {**SUDDEN, "variant": EQUAL}
FINAL: Where = {**SUDDEN_EQUAL, "name": "final global accuracy"}

BEFORE3, AFTER3 = "beta3 in the 100 rounds before", "beta3 in the 5 rounds after"
RATE_EARLY = "effective rate 200 to 180 rounds before"
RATE_LATE = "effective rate in the 20 rounds before"
RATE_AFTER = "effective rate after the drift"
FIXED = ("E=1", "E=3", "E=5", "E=7", "E=10")

AHEAD = Lead("FLASH", by="task", without=ORACLE)
OVER_YOGI = Over("FLASH", ("FedYogi",), by="task")


@dataclass(frozen=True)
class BothScores:
    """A rule for local and for global scores with equal work; the printed set-up's local score is
    reported and decides nothing."""

    rule: ClaimRule
    where: Where
    names: tuple[str, str] = DIPS

    def decide(self, cells: Cells) -> Verdict:
        mine, (local, whole) = cells.of(**self.where), self.names
        named = [
            ("local", self.rule.decide(mine.of(name=local, variant=EQUAL))),
            ("global", self.rule.decide(mine.of(name=whole, variant=EQUAL))),
        ]
        verdict = combined(named, partly=1)
        there = self.rule.decide(mine.of(name=local, variant=PRINTED))
        if there == NOT_RUN:
            return verdict
        text = f"; printed set-up, local: {there.answer}: {there.numbers}"
        return Verdict(verdict.answer, verdict.numbers + text)

    def describe(self) -> str:
        tables = self.where["table"]
        tables = tables if isinstance(tables, str) else " and ".join(tables)
        return (f"{tables}, {' and '.join(self.names)}: {self.rule.describe()}. Partly: for one of "
                "the two scores. The printed set-up is reported")  # fmt: skip


def _quickest(cells: Cells) -> Verdict:
    """FLASH needs the fewest rounds of all methods but the Oracle (ties lost) to come within 2
    points, in every task; partly: in more than half"""
    groups = (cells.of(task=task) for task in cells.values("task"))
    found = needed(present(lead(c, "FLASH", without=ORACLE, smallest=True) for c in groups))
    ahead = sum(d.mean > 0 for d in found)
    text = f"first in {ahead} of {len(found)}; rounds ahead {as_text(found)}"
    return decide(ahead == len(found), text, 2 * ahead > len(found))


def _near_the_oracle(cells: Cells) -> Verdict:
    """Oracle minus FLASH at most 3 points in every task, and less than Oracle minus the best
    baseline"""
    behind = needed(pairs(cells, "Oracle", "FLASH", "task"))
    ahead = needed(AHEAD.differences(cells), len(behind))
    good = all(b.mean <= 3.0 and a.mean > 0 for b, a in zip(behind, ahead, strict=True))
    text = f"behind the Oracle {as_text(behind)}; over the best baseline {as_text(ahead)}"
    return decide(good, text)


HIGHEST, QUICKEST = Above(AHEAD, partly=MOST), ByFunction(_quickest)


def _little_edge(cells: Cells) -> Verdict:
    """FedDrift above HypCluster by more than its standard error in at most a quarter of the tasks
    (local models, equal work)"""
    edge = needed(pairs(cells.of(**QUIET), "FedDrift", "HypCluster", "task"))
    return decide(4 * sum(d.clear for d in edge) <= len(edge), as_text(edge))


register(
    {
        "flash-01": BothScores(HIGHEST, SUDDEN),
        "flash-02": BothScores(QUICKEST, SUDDEN, BACK),
        "flash-03": BothScores(HIGHEST, GRADUAL),
        "flash-04": BothScores(QUICKEST, GRADUAL, BACK),
        "flash-07": BothScores(ByFunction(_near_the_oracle), DRIFTS),
        "flash-10": AllOf(
            {
                "dip": Near(
                    Over("FLASH", ("FedDrift",), by="task"),
                    {**SUDDEN_EQUAL, "name": LOCAL},
                    10.0,
                    positive=True,
                ),
                "recovery": Above(
                    Over("FedDrift", ("FLASH",), by="task"), {**SUDDEN_EQUAL, "name": BACK[0]}
                ),
            }
        ),
        "flash-11": AllOf(
            {
                name: NeverWorse(
                    tuple(
                        Over("FLASH", (m,), by="task") for m in ("FedYogi", "SCAFFOLD", "FedDyn")
                    ),
                    where,
                    clear=0.5,
                )
                for name, where in (
                    ("global accuracy", QUIET_GLOBAL),
                    ("generalized_accuracy", QUIET),
                )
            },
            partly=1,
        ),
        "flash-12": AllOf(
            {
                "a": AtLeast(Lead("FLASH", by="task", without=("Local-Only",)), QUIET, -2.5),
                "b": Near(Over("AdapFA", ("FedYogi",), by="task"), QUIET, 1.0),
                "c": ByFunction(_little_edge),
            }
        ),
    }
)


# ---- dips and recoveries -------------------------------------------------------------------------
@claim("flash-05")
def above_its_base(cells: Cells) -> Verdict:
    """FLASH's dip minus FedYogi's above its standard error in every task, sudden and incremental;
    partly: in more than half. Other server rates are reported next to it."""

    def over_yogi(found: Cells) -> Verdict:
        tables = (found.of(table=table) for table in found.values("table"))
        return all_above([d for t in tables for d in OVER_YOGI.differences(t)], partly=MOST)

    verdict = BothScores(ByFunction(over_yogi), DRIFTS).decide(cells)
    rates = cells.of(table="Server rates")
    text = [
        f"eta_g {rate}, {name}: {as_text([found])}"
        for rate in rates.values("eta_g")
        for name in ("local dip", GLOBAL)
        if (found := pair(rates.of(eta_g=rate, name=name), "FLASH", "FedYogi")) is not None
    ]
    return also(verdict, "; ".join(text))


@claim("flash-06")
def printed_level(cells: Cells) -> Verdict:
    """Synthetic, printed set-up: local dips of FedAvg, FedYogi and FLASH within 10 points of the
    printed ones. The global model's dips are reported: they cannot be the printed ones."""
    mine = cells.of(table="Table 7", task="Synthetic", variant=PRINTED)
    near, text = [], []
    for method in ("FedAvg", "FedYogi", "FLASH"):
        local, every = (first(mine, name=n, method=method) for n in (LOCAL, "global dip"))
        printed = needed(needed(local).printed)
        near.append(abs(level(local) - printed) <= 10.0)
        whole = "" if every is None else f" (global {every.mean:.1f})"
        text.append(f"{method} {level(local):.1f} against {printed:.1f}{whole}")
    return decide(all(near), "; ".join(text))


@claim("flash-08")
def above_the_oracle(cells: Cells) -> Verdict:
    """FLASH's dip above the Oracle's by more than its standard error in more than half of the
    tasks, and the Oracle's dip within 1 point of FedYogi's level before the drift."""

    def above(found: Cells) -> Verdict:
        over = all_above(pairs(found, "FLASH", "Oracle", "task"), holds=MOST)
        steady = []
        for oracle in found.of(method="Oracle"):
            same = {"task": oracle.columns["task"], "variant": oracle.variant}
            here = cells.of(**DRIFTS, name=BEFORE[oracle.name])
            before = first(here, method="FedYogi", **same)
            if before is not None and oracle.mean is not None:
                steady.append(abs(oracle.mean - level(before)) <= 1.0)
        needed(found)
        numbers = f"{sum(steady)} of {len(steady)}"
        never = decide(bool(steady) and all(steady), numbers)
        return combined([("above", over), ("Oracle steady", never)])

    return BothScores(ByFunction(above), DRIFTS).decide(cells)


@claim("flash-09")
def adaptive_fedavg(cells: Cells) -> Verdict:
    """Incremental: AdapFA recovers in at most twice FLASH's rounds in most tasks, and its dip is at
    least 5 points lower in every task."""
    mine = cells.of(**GRADUAL, variant=EQUAL)
    back, close = mine.of(name=BACK[0]), []
    for task in back.values("task"):
        slow, quick = (first(back, task=task, method=m) for m in ("AdapFA", "FLASH"))
        if slow is not None and quick is not None:
            close.append(level(slow) <= 2.0 * max(level(quick), 10.0))
    lower = pairs(mine.of(name=LOCAL), "FLASH", "AdapFA", "task")
    recovers = decide(2 * sum(needed(close)) > len(close), f"{sum(close)} of {len(close)} tasks")
    return combined([("recovery", recovers), ("dip", all_above(needed(lower), limit=5.0))])


@claim("flash-19")
def ends_highest(cells: Cells) -> Verdict:
    """Mean of the last 50 rounds: (a) FLASH above every method but the Oracle by more than its
    standard error; (b) FedYogi below its level before the drift; (c) FLASH below its run without
    drift. Partly: two."""
    mine, final = cells.of(**SUDDEN_EQUAL), cells.of(**FINAL)
    names = (BEFORE[GLOBAL], "final global accuracy")
    fallen = [between(mine, *names, task=t, method="FedYogi") for t in final.values("task")]
    quiet = cells.of(table="Table 4", variant=EQUAL, name="global accuracy", method="FLASH")
    less = [
        difference(first(quiet, task=task), first(final, task=task, method="FLASH"))
        for task in final.values("task")
    ]
    named = [
        ("a", all_above(AHEAD.differences(final))),
        ("b", all_above(present(fallen))),
        ("c", all_above(present(less))),
    ]
    return combined(named, partly=2)


# ---- early stopping, the share of drifting clients, the drift that returns -----------------------
@claim("flash-17")
def early_stopping_wins(cells: Cells) -> Verdict:
    """(a) Local accuracy before the drift above that of the best fixed E by more than its standard
    error and by at least 1 point; (b) the dip above that of every fixed E."""
    mine = cells.of(table="Early stopping", method=("early stopping", *FIXED))
    steady = needed(lead(mine.of(name=BEFORE[LOCAL]), "early stopping"))
    dips = [needed(lead(mine.of(name=n), "early stopping")) for n in ("local dip", GLOBAL)]
    enough = decide(steady.clear and steady.mean >= 1.0, as_text([steady]))
    return combined([("a", enough), ("b", all_above(dips))])


@claim("flash-18")
def more_drift_deeper_dip(cells: Cells) -> Verdict:
    """Dip against the share of drifting clients: rank correlation at most -0.9 (global model, means
    of ten rounds; local reported); at shares 0.1 and 0.2 the final accuracy is within 2 points of
    before."""
    mine = cells.of(table="Share", method="FLASH")
    rule = Correlates("share", {}, -0.9, least=5)
    deeper, local = (rule.decide(mine.of(name=name)) for name in (GLOBAL, "local dip"))
    if NOT_RUN in (deeper, local):
        return NOT_RUN
    names = (BEFORE[GLOBAL], "final global accuracy")
    near = present(between(mine.of(share=s), *names) for s in ("0.1", "0.2"))
    absorbed = decide(bool(near) and all(d.mean <= 2.0 for d in near), as_text(near))
    verdict = combined([(GLOBAL, deeper), ("absorbed", absorbed)])
    return also(verdict, f"local: {local.numbers}")


@claim("flash-20")
def second_dip_is_smaller(cells: Cells) -> Verdict:
    """The return of the old labels dips less than the first drift, by more than the standard error,
    for three quarters of the methods; FLASH is the best method but the Oracle at both. Local
    models, equal work."""
    mine, dips = cells.of(table="Recurrent", variant=EQUAL), ("first dip", "second dip")
    found = needed(present(between(mine, *dips[::-1], method=m) for m in mine.values("method")))
    best = all_above(present(lead(mine.of(name=n), "FLASH", without=ORACLE) for n in dips))
    return combined([("smaller", all_above(found, holds=0.75)), ("FLASH best", best)])


# ---- what the server does inside -----------------------------------------------------------------
@claim("flash-13")
def turns_into_its_base(cells: Cells) -> Verdict:
    """Over the last 100 rounds before the drift, in every run: median over parameters of beta3
    above 0.9 and of |d| / sqrt(v) below 0.05."""
    mine = cells.of(**SYNTHETIC)
    names = (BEFORE3, "relative d in the 100 rounds before")
    weight, share = (needed(first(mine, name=n)) for n in names)
    near = decide(min(weight.values.values()) > 0.9, f"beta3 {weight.mean:.3f}")
    small = decide(max(share.values.values()) < 0.05, f"|d|/sqrt(v) {share.mean:.4f}")
    return combined([("beta3", near), ("d", small)])


@claim("flash-14")
def disparity_jumps(cells: Cells) -> Verdict:
    """(a) Disparity in the 5 rounds after the drift at least 3 times its mean over the 50 before,
    for both optimisers; (b) beta3 lower than before by more than its standard error; (c) disparity
    in rounds 10 to 100 after it lower for FLASH. Partly: (a)."""
    mine = cells.of(**SYNTHETIC)
    jumps, text = [], []
    for method in ("FedYogi", "FLASH"):
        after, before = (
            level(first(mine, name=f"disparity in the {n}", method=method))
            for n in ("5 rounds after", "50 rounds before")
        )
        if not after or not before:
            return NOT_RUN
        jumps.append(after >= 3.0 * before)
        text.append(f"{method} {after / before:.1f} times")
    fall = between(mine, BEFORE3, AFTER3, method="FLASH")
    later = pair(mine.of(name="disparity in rounds 10 to 100 after"), "FedYogi", "FLASH")
    lower = NOT_RUN
    if later is not None:
        lower = decide(later.mean > 0, f"FedYogi minus FLASH {later.mean:.2e}")
    named = [("a", decide(all(jumps), ", ".join(text))), ("b", all_above(present([fall])))]
    return combined([*named, ("c", lower)], needed=("a",))


@claim("flash-15")
def larger_rate(cells: Cells) -> Verdict:
    """Mean effective rate over the 20 rounds after the drift larger for FLASH than for FedYogi by
    more than its standard error; FedYogi's falls over the last 200 rounds before. The share of
    guarded denominators is reported."""
    mine = cells.of(**SYNTHETIC)
    more = needed(pair(mine.of(name=RATE_AFTER), "FLASH", "FedYogi"))
    falls = needed(between(mine, RATE_EARLY, RATE_LATE, method="FedYogi"))
    verdict = combined([("larger", all_above([more])), ("falls", all_above([falls]))])
    guarded = first(mine, name="guarded share after the drift")
    return also(verdict, f"guarded share {guarded.mean:.4f}" if guarded is not None else "")


@claim("flash-16")
def fewer_epochs(cells: Cells) -> Verdict:
    """(a) Epochs after the drift: FedYogi minus FLASH at least 5% (10 to 13 is what is printed);
    (b) FLASH's mean epochs in the first 20 rounds and in the 20 after the drift above those of the
    100 before it; (c) epochs decrease in gamma over 0.01, 0.03, 0.1."""
    mine = cells.of(**SYNTHETIC)
    spent = mine.of(name="epochs after the drift")
    base, own = first(spent, method="FedYogi"), first(spent, method="FLASH")
    if own is None or not level(base):
        return NOT_RUN
    saved = 100.0 * (level(base) - level(own)) / level(base)
    steady = "mean epochs in the 100 rounds before the drift"
    rises = present(
        between(mine, f"mean epochs in the {n}", steady, method="FLASH")
        for n in ("first 20 rounds", "20 rounds after the drift")
    )
    sweep = cells.of(table="Early stopping", name="epochs after the drift")
    known = [
        level(r)
        for m in ("gamma 0.01", "early stopping", "gamma 0.1")
        if (r := first(sweep, method=m)) is not None
    ]
    falling = NOT_RUN
    if len(known) == 3:
        text = " > ".join(f"{e:.0f}" for e in known)
        falling = decide(known == sorted(known, reverse=True), text)
    less = decide(saved >= 5.0, f"{saved:+.1f}%")
    return combined([("a", less), ("b", all_above(rises)), ("c", falling)])


# ---- runs without drift --------------------------------------------------------------------------
@claim("flash-21")
def personalised(cells: Cells) -> Verdict:
    """Local models: FLASH minus FedYogi above its standard error in every task, and FLASH within 2
    points of the best method. Equal work; the printed set-up is reported next to it."""
    names = ("personalized_accuracy", "generalized_accuracy")
    tables = ("Table 5", "Table 6")
    mine = cells.of(table=tables, name=names[0], variant=EQUAL)
    mine = mine if len(mine) else cells.of(**QUIET)
    over = needed(OVER_YOGI.differences(mine))
    behind = Lead("FLASH", by="task").differences(mine)
    near = decide(all(d.mean >= -2.0 for d in behind), as_text(behind))
    verdict = combined([("over FedYogi", all_above(over)), ("near the best", near)])
    there = cells.of(table=(*tables, *QUIET["table"]), name=names, variant=PRINTED)
    found = OVER_YOGI.differences(there)
    return also(verdict, f"printed set-up: {as_text(found)}" if found else "")


@claim("flash-22")
def converges_sooner(cells: Cells) -> Verdict:
    """Rounds to 97% of FedYogi's final accuracy, equal work: FedYogi minus FLASH above its standard
    error in more than half of the tasks, and never below minus it."""
    mine = cells.of(**QUIET_GLOBAL)
    found: Differences = []
    for task in mine.values("task"):
        base, own = (first(mine, task=task, method=m) for m in ("FedYogi", "FLASH"))
        if base is None or own is None:
            continue
        sooner = []
        for seed in set(base.values) & set(own.values):
            wanted = 0.97 * base.values[seed] / 100.0
            slow, quick = (rounds_until(r.run_files(seed).accuracy, wanted) for r in (base, own))
            sooner.append(float(slow - quick))
        if sooner:
            mean = sum(sooner) / len(sooner)
            found.append(PairedDifference(mean, standard_error(sooner), len(sooner)))
    needed(found)
    never = decide(all(d.mean > -d.error for d in found), as_text(found))
    return combined([("sooner", all_above(found, holds=MOST)), ("never later", never)])
