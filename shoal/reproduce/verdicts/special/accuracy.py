"""Verdicts on accuracy and forgetting. FedAvg with server rate 1/i is told beside every gain.

SPECIAL is taken at the better (by ACC) of the paper's lambda and 0.05, which is what retuning to
the smaller local work comes to.
"""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, gap, told
from shoal.reproduce.results import Result
from shoal.reproduce.verdicts.ranking import one, parts, yes

CONTROL = "FedAvg with server rate 1/i"
OURS = ("SPECIAL", "SPECIAL lambda 0.05")
CLIENT = ("SPECIAL-C", "SPECIAL-C per step", "SPECIAL-C per step times the rate")
FREE = ("pFedDIL", "FLwF-2T", "SPECIAL-C")
DOMAINS = ("Table 1", "Office-Caltech-10")


def sequences(cells: Cells, tables: tuple[str, ...] = DOMAINS) -> list[Cells]:
    """The cells of every sequence that was run."""
    found = [cells.of(table=t) for t in tables]
    return [c.of(dataset=d) for c in found for d in c.values("dataset") if len(c.of(dataset=d))]


def ours(cells: Cells) -> str:
    """SPECIAL at the lambda with the higher ACC."""
    known = [r for m in OURS if (r := one(cells, name="ACC", method=m)) is not None]
    return max(known, key=lambda r: r.mean or 0.0).method if known else ""


def ahead(cells: Cells, name: str, *others: str) -> Gap | None:
    """Our SPECIAL minus the best of others in one figure."""
    mine = one(cells, name=name, method=ours(cells))
    rivals = [r for m in others if (r := one(cells, name=name, method=m)) is not None]
    if mine is None or not rivals:
        return None
    return gap(mine, max(rivals, key=lambda r: r.mean or 0.0))


def each(cells: Cells, name: str, *others: str, tables: tuple[str, ...] = DOMAINS) -> list[Gap]:
    return [g for c in sequences(cells, tables) if (g := ahead(c, name, *others)) is not None]


def rivals(cells: Cells) -> tuple[str, ...]:
    skip = (*OURS, CONTROL, *CLIENT[1:])
    return tuple(m for m in cells.values("method") if m not in skip and not m.startswith("lambda"))


def beside(verdict: Verdict, cells: Cells, tables: tuple[str, ...] = DOMAINS) -> Verdict:
    """With what is left over the control."""
    left = [
        f"{n} {told(g)}" for n in ("ACC", "BWT") if (g := each(cells, n, CONTROL, tables=tables))
    ]
    if not left or verdict.answer == "not run":
        return verdict
    return Verdict(verdict.answer, f"{verdict.numbers}; over {CONTROL}: {'; '.join(left)}")


@claim("special-01")
def highest_accuracy(cells: Cells) -> Verdict:
    """ACC of SPECIAL minus that of the best other method above its standard error on every sequence
    run; partly: first on all without that margin. The control does not count as a method."""
    gaps = [g for c in sequences(cells) if (g := ahead(c, "ACC", *rivals(c))) is not None]
    verdict = all_above(gaps)
    if verdict.answer != "holds" and gaps and all(g.mean > 0 for g in gaps):
        verdict = Verdict("partly", verdict.numbers)
    return beside(verdict, cells)


@claim("special-02")
def above_fedavg(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL minus FedAvg both above their standard errors on every sequence. What
    the server rate 1/i alone brings is the control's gain."""
    named = [(n, all_above(each(cells, n, "FedAvg"))) for n in ("ACC", "BWT")]
    return beside(parts(named), cells)


@claim("special-03")
def forgets_little(cells: Cells) -> Verdict:
    """(a) BWT of SPECIAL in the upper half of the replay-free methods on every sequence; (b) above
    that of every method whose ACC is within 3 points, by more than its standard error."""
    ranks, clear = [], []
    for found in sequences(cells):
        mine = one(found, name="BWT", method=ours(found))
        free = [r for m in FREE if (r := one(found, name="BWT", method=m)) is not None]
        acc = one(found, name="ACC", method=ours(found))
        if mine is None or acc is None or len(free) < 2:
            continue
        ranks.append(1 + sum((r.mean or 0) > (mine.mean or 0) for r in free))
        for method in rivals(found):
            near, drop = (one(found, name=n, method=method) for n in ("ACC", "BWT"))
            if (
                near is not None
                and drop is not None
                and abs((near.mean or 0) - (acc.mean or 0)) <= 3
            ):
                found_gap = gap(mine, drop)
                clear += [found_gap] if found_gap is not None else []
    if not ranks:
        return NOT_RUN
    upper = yes(all(r <= 2 for r in ranks), f"ranks {ranks} of 4")
    second = all_above(clear) if clear else yes(True, "no method is within 3 points of ACC")
    return beside(parts([("a", upper), ("b", second)]), cells)


@claim("special-05")
def above_the_client_side(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL minus SPECIAL-C above their standard errors on the less related
    sequences (PACS and the stand-in for VLCS)."""
    mine = [c for c in sequences(cells) if c.values("dataset")[0] != "Digit-10"]
    named = []
    for name in ("ACC", "BWT"):
        gaps = [g for c in mine if (g := ahead(c, name, "SPECIAL-C")) is not None]
        named.append((name, all_above(gaps)))
    return parts(named)


@claim("special-13")
def fewest_rounds(cells: Cells) -> Verdict:
    """Rounds to the best accuracy of each task, summed: SPECIAL's smallest by more than its
    standard error on every sequence."""
    gaps = []
    for found in sequences(cells):
        mine = one(found, name="rounds to best", method=ours(found))
        others = [r for m in rivals(found) if (r := one(found, name="rounds to best", method=m))]
        if mine is None or not others:
            continue
        best = min(others, key=lambda r: r.mean or 0.0)
        found_gap = gap(best, mine)
        gaps += [found_gap] if found_gap is not None else []
    return all_above(gaps)


@claim("special-14")
def costs_what_fedavg_costs(cells: Cells) -> Verdict:
    """Bytes a round equal FedAvg's exactly, nothing kept by clients, seconds a round at most 1.10
    times FedAvg's. Ranks of time among methods are machine-dependent and left out."""
    same, kept, slower = [], [], []
    for found in sequences(cells):
        for method in OURS:
            sent, base = (one(found, name="bytes a round", method=m) for m in (method, "FedAvg"))
            held = one(found, name="model vectors that a client keeps", method=method)
            time, usual = (one(found, name="seconds a round", method=m) for m in (method, "FedAvg"))
            if None in (sent, base, held, time, usual):
                continue
            assert sent and base and held and time and usual
            same.append(sent.mean == base.mean)
            kept.append(held.mean == 0.0)
            slower.append((time.mean or 0.0) / (usual.mean or 1.0))
    if not same:
        return NOT_RUN
    text = ", ".join(f"{s:.2f}" for s in slower)
    named = [
        ("bytes", yes(all(same), f"{sum(same)} of {len(same)} equal")),
        ("memory", yes(all(kept), f"{sum(kept)} of {len(kept)} keep nothing")),
        ("time", yes(max(slower) <= 1.1, f"ratios {text}")),
    ]
    return parts(named)


@claim("special-15")
def language(cells: Cells) -> Verdict:
    """The language sequence: ACC and BWT of SPECIAL above every other method by more than their
    standard errors."""
    return _wins(cells, ("Table 4",))


@claim("special-16")
def class_incremental(cells: Cells) -> Verdict:
    """Split CIFAR-100: ACC and BWT of SPECIAL above every other method run by more than their
    standard errors."""
    return _wins(cells, ("Table 14",))


def _wins(cells: Cells, tables: tuple[str, ...]) -> Verdict:
    named = []
    for name in ("ACC", "BWT"):
        gaps = [g for c in sequences(cells, tables) if (g := ahead(c, name, *rivals(c)))]
        named.append((name, all_above(gaps)))
    return beside(parts(named, partly=1), cells, tables)


@claim("special-18")
def why_fedavg_looks_strong(cells: Cells) -> Verdict:
    """(a) Every continual method with lower ACC than FedAvg forgets less and has the smaller worst
    drop, by more than the standard error; (b) FedProx within 3 points of FedAvg in ACC and BWT."""
    gaps: list[Gap] = []
    near: list[bool] = []
    for found in sequences(cells):
        base = {n: one(found, name=n, method="FedAvg") for n in ("ACC", "BWT", "worst drop")}
        if any(v is None for v in base.values()):
            continue
        for method in (*rivals(found), ours(found)):
            gaps += _forgets_less(found, method, base)
        for name in ("ACC", "BWT"):
            prox = one(found, name=name, method="FedProx")
            if prox is not None and (b := base[name]) is not None:
                near.append(abs((prox.mean or 0) - (b.mean or 0)) <= 3.0)
    if not near:
        return NOT_RUN
    return parts([("a", all_above(gaps)), ("b", yes(all(near), f"{sum(near)} of {len(near)}"))])


def _forgets_less(cells: Cells, method: str, base: dict[str, Result | None]) -> list[Gap]:
    acc = one(cells, name="ACC", method=method)
    if method in ("FedAvg", "FedProx") or acc is None or base["ACC"] is None:
        return []
    if (acc.mean or 0) >= (base["ACC"].mean or 0):
        return []
    out = []
    for name in ("BWT", "worst drop"):
        mine, there = one(cells, name=name, method=method), base[name]
        found = gap(mine, there) if mine is not None and there is not None else None
        out += [found] if found is not None else []
    return out
