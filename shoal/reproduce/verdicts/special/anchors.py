"""Verdicts on where the anchor acts and how far it lets the model go."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, gap, told
from shoal.reproduce.verdicts.ranking import between, one, parts, yes
from shoal.reproduce.verdicts.special.accuracy import ours

FIRST = "first task in rounds 1 to 5 of the second"
SECOND = "second task after round 5"
BOTH = "both tasks at the end of the second"
AT10, AT20 = (f"first task in round {n} of the second" for n in (10, 20))
READINGS = ("SPECIAL-C", "SPECIAL-C per step", "SPECIAL-C per step times the rate")


def _digits(cells: Cells) -> Cells:
    return cells.of(table="Table 1", dataset="Digit-10")


def _minus(cells: Cells, name: str, first: str, second: str) -> Gap | None:
    a, b = (one(cells, name=name, method=m) for m in (first, second))
    return gap(a, b) if a is not None and b is not None else None


@claim("special-04")
def client_side_on_digits(cells: Cells) -> Verdict:
    """Digit-10: BWT of SPECIAL-C (a pull every epoch) above SPECIAL's by more than its standard
    error, and ACC lower by at most 3 points. The other two readings are told."""
    mine = _digits(cells)
    server, text = ours(mine), []
    for reading in READINGS:
        both = [_minus(mine, n, reading, server) for n in ("BWT", "ACC")]
        if None not in both:
            known = [g for g in both if g is not None]
            text.append(f"{reading} minus {server}: BWT {told(known[:1])}, ACC {told(known[1:])}")
    less, near = (_minus(mine, n, READINGS[0], server) for n in ("BWT", "ACC"))
    if less is None or near is None:
        return NOT_RUN
    verdict = parts([("BWT", all_above([less])), ("ACC", yes(near.mean >= -3.0, told([near])))])
    return Verdict(verdict.answer, "; ".join([verdict.numbers, *text]))


@claim("special-06")
def two_tasks(cells: Cells) -> Verdict:
    """While the second digit task is learnt: (a) first task, rounds 1 to 5: client side higher; (b)
    second task after round 5: server side higher; (c) both at the end: server side higher; (d)
    first task of the server side higher at round 20 than at 10. Each by more than its standard
    error. Partly: (b) and (c)."""
    mine = _digits(cells)
    server, client = ours(mine), READINGS[0]
    gaps = {
        "a": _minus(mine, FIRST, client, server),
        "b": _minus(mine, SECOND, server, client),
        "c": _minus(mine, BOTH, server, client),
        "d": between(mine, AT20, AT10, method=server),
    }
    if any(g is None for g in gaps.values()):
        return NOT_RUN
    named = [(n, all_above([g])) for n, g in gaps.items() if g is not None]
    return parts(named, needed=("b", "c"))


@claim("special-10")
def bounded_distance(cells: Cells) -> Verdict:
    """In every round of every later task the distance from the task's start is at most
    ``eta_g D / lambda``, D the largest client update seen, which is never above the printed bound.
    No violation is allowed."""
    names = "largest distance over its bound"
    ratios = [v for r in cells.of(name=names) for v in r.values.values()]
    return (
        yes(max(ratios) <= 1.0, f"largest ratio {max(ratios):.3f} of {len(ratios)} runs")
        if ratios
        else NOT_RUN
    )
