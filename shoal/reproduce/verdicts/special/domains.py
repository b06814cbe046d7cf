"""Verdicts on single domains, and on other numbers of clients a round."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, gap, told
from shoal.reproduce.verdicts.ranking import one
from shoal.reproduce.verdicts.special.accuracy import ahead, ours, rivals, sequences

DOMAIN = "final_task_accuracy:"
BY_DOMAIN = ("Table 2", "Table 10", "Table 11", "Table 12", "Office-Caltech-10")
PARTICIPANTS = ("Table 16", "Table 21", "Table 26")  # 2, 6 and 8 clients a round


@claim("special-17")
def better_on_every_domain(cells: Cells) -> Verdict:
    """Final accuracy of SPECIAL on each domain minus that of the baseline with the highest ACC
    above 0 on all domains of the sequences run but the digits (Office-Caltech-10 stands in for
    VLCS); partly: on more than half. SPECIAL is taken at its better lambda; the control does not
    count as a method."""
    gaps: list[Gap] = []
    text = []
    for found in sequences(cells, BY_DOMAIN):
        known = [r for m in rivals(found) if (r := one(found, name="ACC", method=m)) is not None]
        if not known or not ours(found):
            continue
        best = max(known, key=lambda r: r.mean or 0.0).method
        mine = _by_domain(found, ours(found), best)
        each = ", ".join(f"{g.name.removeprefix(DOMAIN)} {g.mean:+.2f}" for g in mine)
        text += [f"over {best}: {each}"] if mine else []
        gaps += mine
    if not gaps:
        return NOT_RUN
    share = sum(g.mean > 0 for g in gaps) / len(gaps)
    numbers = "; ".join([*text, told(gaps)])
    return Verdict("holds" if share == 1 else "partly" if share > 0.5 else "fails", numbers)


def _by_domain(cells: Cells, mine: str, other: str) -> list[Gap]:
    names = [n for n in cells.values("name") if n.startswith(DOMAIN)]
    pairs = [[one(cells, name=n, method=m) for m in (mine, other)] for n in names]
    found = [gap(a, b) for a, b in pairs if a is not None and b is not None]
    return [g for g in found if g is not None]


@claim("special-21")
def highest_with_other_participation(cells: Cells) -> Verdict:
    """ACC of SPECIAL minus that of the best other method run above its standard error for 2, 6 and
    8 clients a round on every sequence; partly: first in all without that margin."""
    groups = sequences(cells, PARTICIPANTS)
    stand_in = cells.of(table="Office participants")
    groups += [stand_in.of(clients=n) for n in stand_in.values("clients")]
    gaps = [g for c in groups if (g := ahead(c, "ACC", *rivals(c))) is not None]
    if len({_count(c) for c in groups}) < 3:
        return NOT_RUN
    verdict = all_above(gaps)
    if verdict.answer != "holds" and all(g.mean > 0 for g in gaps):
        return Verdict("partly", verdict.numbers)
    return verdict


def _count(cells: Cells) -> str:
    """How many clients a round these cells are about."""
    first = cells.results[0]
    return first.columns.get("clients") or first.columns.get("participation", "").partition("-")[0]
