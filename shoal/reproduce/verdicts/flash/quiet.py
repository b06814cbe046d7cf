"""Verdicts on runs without drift (Tables 1, 3 to 6)."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, standard_error, told
from shoal.reproduce.verdicts.ranking import leads, one, pairs, parts, yes

TABLES = ("Table 1", "Table 3", "Table 4")
LOCAL, GLOBAL = "generalized_accuracy", "global accuracy"
BASES = ("FedYogi", "SCAFFOLD", "FedDyn")


def _quiet(cells: Cells, name: str) -> Cells:
    return cells.of(table=TABLES, name=name, variant="paper")


@claim("flash-11")
def at_least_as_good(cells: Cells) -> Verdict:
    """Mean of the last 50 rounds, members weighing by test rows, equal work: FLASH minus each of
    FedYogi, SCAFFOLD and FedDyn above -SE in every task and above +SE in at least half; for the
    global and for local models."""
    named = []
    for name in (GLOBAL, LOCAL):
        gaps = [g for m in BASES for g in pairs(_quiet(cells, name), "FLASH", m, "task")]
        if not gaps:
            return NOT_RUN
        never = all(g.mean > -g.error for g in gaps)
        clear = sum(g.mean > g.error for g in gaps)
        named.append((name, yes(never and 2 * clear >= len(gaps), told(gaps))))
    return parts(named, partly=1)


@claim("flash-12")
def comparable(cells: Cells) -> Verdict:
    """(a) The best other method at most 2.5 points above FLASH in every task; (b) AdapFA within 1
    point of FedYogi; (c) FedDrift above HypCluster by more than its standard error in at most a
    quarter of the tasks. Local models, equal work."""
    mine = _quiet(cells, LOCAL)
    behind = leads(mine, "FLASH", "task", without=("Local-Only",))
    alike = pairs(mine, "AdapFA", "FedYogi", "task")
    edge = pairs(mine, "FedDrift", "HypCluster", "task")
    if not behind or not alike or not edge:
        return NOT_RUN
    above = sum(g.mean > g.error for g in edge)
    return parts(
        [
            ("a", yes(all(g.mean >= -2.5 for g in behind), told(behind))),
            ("b", yes(all(abs(g.mean) <= 1.0 for g in alike), told(alike))),
            ("c", yes(4 * above <= len(edge), told(edge))),
        ]
    )


@claim("flash-21")
def personalised(cells: Cells) -> Verdict:
    """Local models: FLASH minus FedYogi above its standard error in every task, and FLASH within 2
    points of the best method. Equal work; the printed set-up is told beside it."""
    tables = ("Table 5", "Table 6")
    mine = cells.of(table=tables, name="personalized_accuracy", variant="paper")
    mine = mine if len(mine) else _quiet(cells, LOCAL)
    over, behind = pairs(mine, "FLASH", "FedYogi", "task"), leads(mine, "FLASH", "task")
    if not over:
        return NOT_RUN
    near = yes(all(g.mean >= -2.0 for g in behind), told(behind))
    verdict = parts([("over FedYogi", all_above(over)), ("near the best", near)])
    there = cells.of(
        table=(*tables, *TABLES), name=("personalized_accuracy", LOCAL), variant="authors"
    )
    beside = pairs(there, "FLASH", "FedYogi", "task")
    extra = f"; printed set-up: {told(beside)}" if beside else ""
    return Verdict(verdict.answer, verdict.numbers + extra)


@claim("flash-22")
def converges_sooner(cells: Cells) -> Verdict:
    """Rounds to 97% of FedYogi's final accuracy, equal work: FedYogi minus FLASH above its standard
    error in more than half of the tasks, and never below minus it."""
    mine = _quiet(cells, GLOBAL)
    gaps = []
    for task in mine.values("task"):
        base, own = (one(mine, task=task, method=m) for m in ("FedYogi", "FLASH"))
        if base is None or own is None:
            continue
        found = []
        for seed in set(base.values) & set(own.values):
            level = 0.97 * base.values[seed] / 100.0
            found.append(
                _until(base.reading(seed).accuracy, level)
                - _until(own.reading(seed).accuracy, level)
            )
        if found:
            gaps.append(Gap(sum(found) / len(found), standard_error(found), len(found), {}))
    if not gaps:
        return NOT_RUN
    never = yes(all(g.mean > -g.error for g in gaps), told(gaps))
    return parts([("sooner", all_above(gaps, holds=0.5 + 1e-6)), ("never later", never)])


def _until(accuracy: list[float | None], level: float) -> float:
    found = (n for n, a in enumerate(accuracy, 1) if a is not None and a >= level)
    return float(next(found, len(accuracy) + 1))
