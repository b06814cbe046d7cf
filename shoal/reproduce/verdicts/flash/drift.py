"""Verdicts on dips and recoveries.

Decided with equal local work (variant ``paper``), for local models and for the global model (means
of ten rounds); the printed set-up (variant ``authors``: baselines train one epoch) is told beside.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, gap, told
from shoal.reproduce.verdicts.ranking import between, lead, leads, one, pair, pairs, parts, yes

LOCAL, GLOBAL = "accuracy_dip", "global dip in means of 10 rounds"
LOCAL_BACK, GLOBAL_BACK = "local recovery within 2 points", "global recovery within 2 points"
EQUAL, PRINTED = "paper", "authors"
ORACLE = ("Oracle",)


def both_scores(
    cells: Cells, names: tuple[str, str], decide: Callable[[Cells], Verdict]
) -> Verdict:
    """For local and global scores with equal work; the printed set-up beside it."""
    local, whole = names
    named = [
        ("local", decide(cells.of(name=local, variant=EQUAL))),
        ("global", decide(cells.of(name=whole, variant=EQUAL))),
    ]
    there = decide(cells.of(name=local, variant=PRINTED))
    verdict = parts(named, partly=1)
    beside = f"; printed set-up, local: {there.answer}: {there.numbers}"
    return Verdict(verdict.answer, verdict.numbers + (beside if there != NOT_RUN else ""))


def _highest(cells: Cells) -> Verdict:
    return all_above(leads(cells, "FLASH", "task", without=ORACLE), partly=0.5 + 1e-6)


def _quickest(cells: Cells) -> Verdict:
    gaps = leads(cells, "FLASH", "task", without=ORACLE, smallest=True)
    if not gaps:
        return NOT_RUN
    first = sum(g.mean > 0 for g in gaps)
    answer = "holds" if first == len(gaps) else "partly" if 2 * first > len(gaps) else "fails"
    return Verdict(answer, f"first in {first} of {len(gaps)}; rounds ahead {told(gaps)}")  # type: ignore[arg-type]


@claim("flash-01")
def highest_dip(cells: Cells) -> Verdict:
    """Sudden drift: FLASH's lowest accuracy above that of every method but the Oracle by more than
    its standard error in every task; partly: in more than half, or for one of the two scores."""
    return both_scores(cells.of(table="Table 7"), (LOCAL, GLOBAL), _highest)


@claim("flash-02")
def quickest_recovery(cells: Cells) -> Verdict:
    """Sudden drift: FLASH needs the fewest rounds (ties lost) to come within 2 points, in every
    task."""
    return both_scores(cells.of(table="Table 7"), (LOCAL_BACK, GLOBAL_BACK), _quickest)


@claim("flash-03")
def highest_dip_incremental(cells: Cells) -> Verdict:
    """As flash-01 for an incremental drift."""
    return both_scores(cells.of(table="Table 2"), (LOCAL, GLOBAL), _highest)


@claim("flash-04")
def quickest_incremental(cells: Cells) -> Verdict:
    """As flash-02 for an incremental drift, counted from its first step."""
    return both_scores(cells.of(table="Table 2"), (LOCAL_BACK, GLOBAL_BACK), _quickest)


@claim("flash-05")
def above_its_base(cells: Cells) -> Verdict:
    """FLASH's dip minus FedYogi's above its standard error in every task, sudden and incremental;
    other server rates are told beside it."""
    mine = cells.of(table=("Table 7", "Table 2"))

    def decide(found: Cells) -> Verdict:
        gaps = [g for t in found.values("table") for g in _over_yogi(found.of(table=t))]
        return all_above(gaps, partly=0.5 + 1e-6)

    verdict = both_scores(mine, (LOCAL, GLOBAL), decide)
    rates = cells.of(table="Server rates")
    told_ = [
        f"eta_g {rate}, {name}: {told([g])}"
        for rate in rates.values("eta_g")
        for name in ("local dip", GLOBAL)
        if (g := pair(rates.of(eta_g=rate, name=name), "FLASH", "FedYogi")) is not None
    ]
    return Verdict(verdict.answer, "; ".join([verdict.numbers, *told_]))


def _over_yogi(cells: Cells) -> list[Gap]:
    return pairs(cells, "FLASH", "FedYogi", "task")


@claim("flash-06")
def printed_level(cells: Cells) -> Verdict:
    """Synthetic, printed set-up: local dips of FedAvg, FedYogi and FLASH within 10 points of the
    printed ones. The global model's dips are told: they cannot be the printed ones."""
    mine = cells.of(table="Table 7", task="Synthetic", variant=PRINTED)
    near, text = [], []
    for method in ("FedAvg", "FedYogi", "FLASH"):
        local, every = (
            one(mine, name=LOCAL, method=method),
            one(mine, name="global dip", method=method),
        )
        if local is None or local.mean is None or local.printed is None:
            return NOT_RUN
        near.append(abs(local.mean - local.printed) <= 10.0)
        whole = (
            f" (global {every.mean:.1f})" if every is not None and every.mean is not None else ""
        )
        text.append(f"{method} {local.mean:.1f} against {local.printed:.1f}{whole}")
    return yes(all(near), "; ".join(text))


@claim("flash-07")
def near_the_oracle(cells: Cells) -> Verdict:
    """Oracle minus FLASH at most 3 points in every task, and less than Oracle minus the best
    baseline."""

    def decide(found: Cells) -> Verdict:
        behind = pairs(found, "Oracle", "FLASH", "task")
        ahead = leads(found, "FLASH", "task", without=ORACLE)
        if not behind or len(behind) != len(ahead):
            return NOT_RUN
        good = all(b.mean <= 3.0 and a.mean > 0 for b, a in zip(behind, ahead, strict=True))
        return yes(good, f"behind the Oracle {told(behind)}; over the best baseline {told(ahead)}")

    return both_scores(cells.of(table=("Table 7", "Table 2")), (LOCAL, GLOBAL), decide)


@claim("flash-08")
def above_the_oracle(cells: Cells) -> Verdict:
    """FLASH's dip above the Oracle's by more than its standard error in more than half of the
    tasks, and the Oracle's dip within 1 point of FedYogi's level before the drift."""
    before = {LOCAL: "local accuracy before the drift", GLOBAL: "global accuracy before the drift"}
    mine = cells.of(table=("Table 7", "Table 2"))

    def decide(found: Cells) -> Verdict:
        over = all_above(pairs(found, "FLASH", "Oracle", "task"), holds=0.5 + 1e-6)
        names = found.values("name")
        if not names:
            return NOT_RUN
        steady = mine.of(name=before[names[0]], method="FedYogi")
        still = []
        for oracle in found.of(method="Oracle"):
            level = one(steady, task=oracle.columns["task"], variant=oracle.variant)
            if level is not None and level.mean is not None and oracle.mean is not None:
                still.append(abs(oracle.mean - level.mean) <= 1.0)
        return parts(
            [
                ("above", over),
                ("Oracle steady", yes(bool(still) and all(still), f"{sum(still)} of {len(still)}")),
            ]
        )

    return both_scores(mine, (LOCAL, GLOBAL), decide)


@claim("flash-09")
def adaptive_fedavg(cells: Cells) -> Verdict:
    """Incremental: AdapFA recovers in at most twice FLASH's rounds in most tasks, and its dip is at
    least 5 points lower in every task."""
    mine = cells.of(table="Table 2", variant=EQUAL)
    back, dips = mine.of(name=LOCAL_BACK), mine.of(name=LOCAL)
    close = []
    for task in back.values("task"):
        a, f = (one(back, task=task, method=m) for m in ("AdapFA", "FLASH"))
        if a is not None and f is not None and a.mean is not None and f.mean is not None:
            close.append(a.mean <= 2.0 * max(f.mean, 10.0))
    lower = pairs(dips, "FLASH", "AdapFA", "task")
    if not close or not lower:
        return NOT_RUN
    quick = yes(2 * sum(close) > len(close), f"{sum(close)} of {len(close)} tasks")
    return parts([("recovery", quick), ("dip", all_above(lower, limit=5.0))])


@claim("flash-10")
def feddrift_is_slower(cells: Cells) -> Verdict:
    """FedDrift's dip within 10 points of FLASH's and below it, and its recovery longer by more than
    its standard error, in every task."""
    mine = cells.of(table="Table 7", variant=EQUAL)
    dips = pairs(mine.of(name=LOCAL), "FLASH", "FedDrift", "task")
    slower = pairs(mine.of(name=LOCAL_BACK), "FedDrift", "FLASH", "task")
    if not dips or not slower:
        return NOT_RUN
    near = yes(all(0 < g.mean <= 10 for g in dips), told(dips))
    return parts([("dip", near), ("recovery", all_above(slower))])


@claim("flash-19")
def ends_highest(cells: Cells) -> Verdict:
    """Mean of the last 50 rounds: (a) FLASH above every method but the Oracle by more than its
    standard error; (b) FedYogi below its level before the drift; (c) FLASH below its run without
    drift. Partly: two."""
    mine = cells.of(table="Table 7", variant=EQUAL)
    final = mine.of(name="final global accuracy")
    top = all_above(
        [g for t in final.values("task") if (g := lead(final.of(task=t), "FLASH", without=ORACLE))]
    )
    fallen = [g for t in final.values("task") if (g := _since(mine.of(task=t, method="FedYogi")))]
    quiet = cells.of(table="Table 4", variant=EQUAL, name="global accuracy", method="FLASH")
    less = [
        g
        for t in final.values("task")
        if (g := _less(final.of(task=t, method="FLASH"), quiet.of(task=t)))
    ]
    return parts([("a", top), ("b", all_above(fallen)), ("c", all_above(less))], partly=2)


def _since(cells: Cells) -> Gap | None:
    return between(cells, "global accuracy before the drift", "final global accuracy")


def _less(drifted: Cells, quiet: Cells) -> Gap | None:
    a, b = one(quiet), one(drifted)
    return gap(a, b) if a is not None and b is not None else None
