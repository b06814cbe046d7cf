"""SPECIAL's claims. FedAvg with server rate 1/i is reported next to every gain.

SPECIAL is taken at the better (by ACC) of the paper's lambda and 0.05, which is what retuning to
the smaller local work results in.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.papers.cells import CellResult
from shoal.papers.claims import NOT_RUN, Cells, Verdict, claim, needed, register
from shoal.papers.claims.rules import (
    Correlates,
    Differences,
    PairedDifference,
    all_above,
    also,
    as_text,
    between,
    combined,
    decide,
    difference,
    first,
    level,
    peak,
    present,
    spearman,
)
from shoal.papers.measures import power_law

CONTROL = "FedAvg with server rate 1/i"
OURS = ("SPECIAL", "SPECIAL lambda 0.05")
CLIENT = ("SPECIAL-C", "SPECIAL-C per step", "SPECIAL-C per step times the rate")
FREE = ("pFedDIL", "FLwF-2T", "SPECIAL-C")
BOTH = ("ACC", "BWT")
DOMAINS = ("Table 1", "Office-Caltech-10")
BY_DOMAIN = ("Table 2", "Table 10", "Table 11", "Table 12", "Office-Caltech-10")
PARTICIPANTS = ("Table 16", "Table 21", "Table 26")  # 2, 6 and 8 clients per round
DOMAIN = "final_task_accuracy:"
LAMBDAS = {CONTROL: "lambda 0", OURS[1]: "lambda 0.05", OURS[0]: "lambda 0.25"}

register(
    {
        "special-20": Correlates(
            "alpha",
            {"table": "Dirichlet", "name": "ACC", "method": "SPECIAL"},
            0.8,
            least=4,
            counted="levels",
        ),
    }
)


def _sequences(cells: Cells, tables: Sequence[str] = DOMAINS) -> list[Cells]:
    """The cells of every sequence that was run."""
    found = [cells.of(table=t) for t in tables]
    return [c.of(dataset=d) for c in found for d in c.values("dataset")]


def _best(cells: Cells, name: str, methods: Sequence[str]) -> CellResult | None:
    """The highest of these methods' figures."""
    found = [r for m in methods if (r := first(cells, name=name, method=m)) is not None]
    return max(found, key=level, default=None)


def _ours(cells: Cells) -> str:
    """SPECIAL at the lambda with the higher ACC."""
    best = _best(cells, "ACC", OURS)
    return best.method if best is not None else ""


def _ahead(cells: Cells, name: str, *others: str) -> PairedDifference | None:
    """Our SPECIAL minus the best of others in one figure."""
    mine = first(cells, name=name, method=_ours(cells))
    return difference(mine, _best(cells, name, others))


def _each(groups: Sequence[Cells], name: str, *others: str) -> Differences:
    """For every sequence; over the best other method where none are named."""
    return present(_ahead(c, name, *(others or _rivals(c))) for c in groups)


def _rivals(cells: Cells) -> tuple[str, ...]:
    skip = (*OURS, CONTROL, *CLIENT[1:])
    return tuple(m for m in cells.values("method") if m not in skip and not m.startswith("lambda"))


def _with_control(verdict: Verdict, groups: Sequence[Cells]) -> Verdict:
    """The verdict, and what is left over the control."""
    left = [f"{n} {as_text(d)}" for n in BOTH if (d := _each(groups, n, CONTROL))]
    return also(verdict, f"over {CONTROL}: {'; '.join(left)}" if left else "")


def _first_in_all(found: Differences) -> Verdict:
    """Clearly first everywhere; partly: first without that margin."""
    verdict = all_above(found)
    if verdict.answer != "holds" and found and all(d.mean > 0 for d in found):
        return Verdict("partly", verdict.numbers)
    return verdict


# ---- accuracy and forgetting ---------------------------------------------------------------------
@claim("special-01")
def highest_accuracy(cells: Cells) -> Verdict:
    """ACC of SPECIAL minus that of the best other method above its standard error on every sequence
    run; partly: first on all without that margin. The control does not count as a method."""
    groups = _sequences(cells)
    return _with_control(_first_in_all(_each(groups, "ACC")), groups)


@claim("special-02")
def above_fedavg(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL minus FedAvg both above their standard errors on every sequence. What
    the server rate 1/i alone brings is the control's gain."""
    groups = _sequences(cells)
    return _with_control(
        combined([(n, all_above(_each(groups, n, "FedAvg"))) for n in BOTH]), groups
    )


@claim("special-03")
def forgets_little(cells: Cells) -> Verdict:
    """(a) BWT of SPECIAL in the upper half of the replay-free methods on every sequence; (b) above
    that of every method whose ACC is within 3 points, by more than its standard error."""
    ranks: list[int] = []
    clear: Differences = []
    groups = _sequences(cells)
    for found in groups:
        acc, mine = (first(found, name=n, method=_ours(found)) for n in BOTH)
        free = [r for m in FREE if (r := first(found, name="BWT", method=m)) is not None]
        if mine is None or acc is None or len(free) < 2:
            continue
        ranks.append(1 + sum(level(r) > level(mine) for r in free))
        for method in _rivals(found):
            near, drop = (first(found, name=n, method=method) for n in BOTH)
            if near is not None and abs(level(near) - level(acc)) <= 3:
                clear += present([difference(mine, drop)])
    upper = decide(all(r <= 2 for r in needed(ranks)), f"ranks {ranks} of 4")
    second = all_above(clear) if clear else decide(True, "no method is within 3 points of ACC")
    return _with_control(combined([("a", upper), ("b", second)]), groups)


@claim("special-05")
def above_the_client_side(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL minus SPECIAL-C above their standard errors on the less related
    sequences (PACS and the stand-in for VLCS)."""
    mine = [c for c in _sequences(cells) if c.values("dataset")[0] != "Digit-10"]
    return combined([(name, all_above(_each(mine, name, "SPECIAL-C"))) for name in BOTH])


@claim("special-13")
def fewest_rounds(cells: Cells) -> Verdict:
    """Rounds to the best accuracy of each task, summed: SPECIAL's smallest by more than its
    standard error on every sequence."""
    out = []
    for found in _sequences(cells):
        rounds = found.of(name="rounds to best")
        others = [r for m in _rivals(found) if (r := first(rounds, method=m)) is not None]
        nearest = min(others, key=level, default=None)
        out.append(difference(nearest, first(rounds, method=_ours(found))))
    return all_above(present(out))


@claim("special-14")
def costs_what_fedavg_costs(cells: Cells) -> Verdict:
    """Bytes per round equal FedAvg's exactly, nothing kept by clients, seconds per round at most
    1.10 times FedAvg's. Ranks of time among methods are machine-dependent and left out."""
    same, kept, slower = [], [], []
    for found in _sequences(cells):
        for method in OURS:
            sent, base = (first(found, name="bytes a round", method=m) for m in (method, "FedAvg"))
            held = first(found, name="model vectors that a client keeps", method=method)
            time, usual = (
                first(found, name="seconds a round", method=m) for m in (method, "FedAvg")
            )
            if sent is None or base is None or held is None or time is None or usual is None:
                continue
            same.append(sent.mean == base.mean)
            kept.append(held.mean == 0.0)
            slower.append(level(time) / (level(usual) or 1.0))
    needed(same)
    text = ", ".join(f"{s:.2f}" for s in slower)
    named = [
        ("bytes", decide(all(same), f"{sum(same)} of {len(same)} equal")),
        ("memory", decide(all(kept), f"{sum(kept)} of {len(kept)} keep nothing")),
        ("time", decide(max(slower) <= 1.1, f"ratios {text}")),
    ]
    return combined(named)


@claim("special-15")
def language(cells: Cells) -> Verdict:
    """The language sequence: ACC and BWT of SPECIAL above every other method by more than their
    standard errors."""
    return _wins(_sequences(cells, ("Table 4",)))


@claim("special-16")
def class_incremental(cells: Cells) -> Verdict:
    """Split CIFAR-100: ACC and BWT of SPECIAL above every other method run by more than their
    standard errors."""
    return _wins(_sequences(cells, ("Table 14",)))


def _wins(groups: Sequence[Cells]) -> Verdict:
    named = [(name, all_above(_each(groups, name))) for name in BOTH]
    return _with_control(combined(named, partly=1), groups)


@claim("special-18")
def why_fedavg_looks_strong(cells: Cells) -> Verdict:
    """(a) Every continual method with lower ACC than FedAvg forgets less and has the smaller worst
    drop, by more than the standard error; (b) FedProx within 3 points of FedAvg in ACC and BWT."""
    less: Differences = []
    near: list[bool] = []
    for found in _sequences(cells):
        names = (*BOTH, "worst drop")
        base = {n: r for n in names if (r := first(found, name=n, method="FedAvg")) is not None}
        if len(base) < len(names):
            continue
        for method in (*_rivals(found), _ours(found)):
            acc = first(found, name="ACC", method=method)
            lower = acc is not None and level(acc) < level(base["ACC"])
            if lower and method not in ("FedAvg", "FedProx"):
                less += present(
                    difference(first(found, name=n, method=method), base[n]) for n in names[1:]
                )
        prox = {n: first(found, name=n, method="FedProx") for n in BOTH}
        near += [abs(level(r) - level(base[n])) <= 3.0 for n, r in prox.items() if r is not None]
    close = decide(all(needed(near)), f"{sum(near)} of {len(near)}")
    return combined([("a", all_above(less)), ("b", close)])


# ---- where the anchor acts, and how far it lets the model go -------------------------------------
@claim("special-04")
def client_side_on_digits(cells: Cells) -> Verdict:
    """Digit-10: BWT of SPECIAL-C (a pull every epoch) above SPECIAL's by more than its standard
    error, and ACC lower by at most 3 points. The other two readings are reported."""
    mine = cells.of(table="Table 1", dataset="Digit-10")
    server, text, main = _ours(mine), [], NOT_RUN
    for reading in CLIENT:
        back, acc = (_minus(mine, name, reading, server) for name in ("BWT", "ACC"))
        if back is None or acc is None:
            continue
        text.append(f"{reading} minus {server}: BWT {as_text([back])}, ACC {as_text([acc])}")
        if reading == CLIENT[0]:
            near = decide(acc.mean >= -3.0, as_text([acc]))
            main = combined([("BWT", all_above([back])), ("ACC", near)])
    return also(main, "; ".join(text))


def _minus(cells: Cells, name: str, one: str, other: str) -> PairedDifference | None:
    return difference(*(first(cells, name=name, method=m) for m in (one, other)))


@claim("special-06")
def two_tasks(cells: Cells) -> Verdict:
    """While the second digit task is learnt: (a) first task, rounds 1 to 5: client side higher; (b)
    second task after round 5: server side higher; (c) both at the end: server side higher; (d)
    first task of the server side higher at round 20 than at 10. Each by more than its standard
    error. Partly: (b) and (c)."""
    mine = cells.of(table="Table 1", dataset="Digit-10")
    server, client = _ours(mine), CLIENT[0]
    at10, at20 = (f"first task in round {n} of the second" for n in (10, 20))
    found = {
        "a": _minus(mine, "first task in rounds 1 to 5 of the second", client, server),
        "b": _minus(mine, "second task after round 5", server, client),
        "c": _minus(mine, "both tasks at the end of the second", server, client),
        "d": between(mine, at20, at10, method=server),
    }
    named = [(n, all_above([needed(d)])) for n, d in found.items()]
    return combined(named, needed=("b", "c"))


@claim("special-10")
def bounded_distance(cells: Cells) -> Verdict:
    """In every round of every later task the distance from the task's start is at most
    ``eta_g D / lambda``, D the largest client update seen, which is never above the printed bound.
    No violation is allowed."""
    ratios = needed(cells.of(name="largest distance over its bound").figures())
    return decide(max(ratios) <= 1.0, f"largest ratio {max(ratios):.3f} of {len(ratios)} runs")


# ---- single domains, and other numbers of clients per round --------------------------------------
@claim("special-17")
def better_on_every_domain(cells: Cells) -> Verdict:
    """Final accuracy of SPECIAL on each domain minus that of the baseline with the highest ACC
    above 0 on all domains of the sequences run but the digits (Office-Caltech-10 stands in for
    VLCS); partly: on more than half. SPECIAL is taken at its better lambda; the control does not
    count as a method."""
    found: Differences = []
    text = []
    for group in _sequences(cells, BY_DOMAIN):
        best = _best(group, "ACC", _rivals(group))
        if best is None or not _ours(group):
            continue
        names = [n for n in group.values("name") if n.startswith(DOMAIN)]
        mine = present(_minus(group, n, _ours(group), best.method) for n in names)
        each = ", ".join(f"{d.name.removeprefix(DOMAIN)} {d.mean:+.2f}" for d in mine)
        text += [f"over {best.method}: {each}"] if mine else []
        found += mine
    needed(found)
    share = sum(d.mean > 0 for d in found) / len(found)
    return decide(share == 1, "; ".join([*text, as_text(found)]), share > 0.5)


@claim("special-21")
def highest_with_other_participation(cells: Cells) -> Verdict:
    """ACC of SPECIAL minus that of the best other method run above its standard error for 2, 6 and
    8 clients per round on every sequence; partly: first in all without that margin."""
    groups = _sequences(cells, PARTICIPANTS)
    stand_in = cells.of(table="Office participants")
    groups += [stand_in.of(clients=n) for n in stand_in.values("clients")]
    needed({_count(c.results[0]) for c in groups}, 3)
    return _first_in_all(_each(groups, "ACC"))


def _count(result: CellResult) -> str:
    """How many clients per round a cell is about."""
    columns = result.columns
    return columns.get("clients") or columns.get("participation", "").partition("-")[0]


# ---- lambda, rounds, epochs, participation -------------------------------------------------------
def _curves(cells: Cells, name: str) -> list[tuple[str, list[tuple[float, CellResult]]]]:
    """The sequences with a sweep over lambda: every lambda and its figure, in order."""
    mine = cells.of(table="Lambda")
    swept = [(d, mine.of(dataset=d)) for d in mine.values("dataset")]
    out = []
    for data, found in [*swept, ("Office-Caltech-10", cells.of(table="Office-Caltech-10"))]:
        named = [(LAMBDAS.get(r.method, r.method), r) for r in found.of(name=name)]
        points = [
            (float(method.split()[1]), r)
            for method, r in named
            if method.startswith("lambda ") and r.mean is not None
        ]
        if len(points) >= 5:
            out.append((data, sorted(points, key=lambda p: p[0])))
    return out


@claim("special-07")
def forgetting_falls(cells: Cells) -> Verdict:
    """Rank correlation of BWT with lambda at least 0.9 on every sequence swept."""
    rule = Correlates("lambda", {}, 0.9, counted="lambdas")
    return combined(
        [
            (data, rule.of([(lam, level(r)) for lam, r in points]))
            for data, points in _curves(cells, "BWT")
        ]
    )


@claim("special-08")
def interior_peak(cells: Cells) -> Verdict:
    """(a) The best ACC at 0 < lambda < 1 with both ends lower by more than the standard error; (b)
    ACC at 0.2 and 0.3 within 1 point of 0.25 on the digit sequence."""
    named = []
    for data, points in _curves(cells, "ACC"):
        best, lower = peak(points)
        curve = ", ".join(f"{lam:g}: {r.mean:.1f}" for lam, r in points)
        named.append(
            (f"peak, {data}", decide(lower and 0 < best < 1, f"best at {best:g} ({curve})"))
        )
        near = {lam: level(r) for lam, r in points if lam in (0.2, 0.25, 0.3)}
        if data == "Digit-10" and len(near) == 3:
            flat = max(abs(v - near[0.25]) for v in near.values())
            named.append(("flat", decide(flat <= 1.0, f"{flat:.2f} points")))
    return combined(named)


@claim("special-09")
def client_side_sweep(cells: Cells) -> Verdict:
    """SPECIAL-C on the digits: rank correlation of BWT with lambda at least 0.9; the best ACC at
    0.2 or 0.4, above both ends by more than the standard error. lambda 0 is FedAvg with server rate
    1/i, not FedAvg: both are reported."""
    mine = cells.of(table="Table 13")
    back, acc = (
        [
            (float(lam), r)
            for lam in ("0", "0.2", "0.4", "0.6", "0.8", "1.0")
            if (r := first(mine, name=name, method=f"SPECIAL-C(lambda={lam})")) is not None
        ]
        for name in ("BWT", "ACC")
    )
    rho = spearman([(lam, level(r)) for lam, r in needed(back, 6)])
    best, lower = peak(needed(acc, 6))
    text = ", ".join(f"{lam:g}: {r.mean:.1f}" for lam, r in acc)
    plain = first(mine, name="ACC", method="FedAvg")
    base = f"; FedAvg {plain.mean:.1f}" if plain is not None else ""
    top = decide(best in (0.2, 0.4) and lower, text + base)
    return combined([("BWT", decide(rho >= 0.9, f"{rho:+.2f}")), ("ACC", top)])


@claim("special-19")
def rounds_and_epochs(cells: Cells) -> Verdict:
    """Rank correlation of ACC with rounds at least 0.9; BWT lowest at an interior number of rounds;
    ACC increasing in epochs up to 5; rank correlation of BWT with epochs at most -0.8. Partly:
    two."""
    (more, back), (longer, worse) = (
        [
            sorted(
                (float(r.columns[axis]), level(r))
                for r in cells.of(table=table, name=name, method="SPECIAL")
            )
            for name in BOTH
        ]
        for table, axis in (("Rounds", "rounds"), ("Epochs", "epochs"))
    )
    for swept in (more, longer):
        needed(swept, 4)
    least = min(back, key=lambda p: p[1])[0]
    upto = [a for e, a in longer if e <= 5]
    rising, falling = spearman(more), spearman(worse)
    named = [
        ("ACC by rounds", decide(rising >= 0.9, f"{rising:+.2f}")),
        ("BWT by rounds", decide(back[0][0] < least < back[-1][0], f"lowest at {least:g}")),
        ("ACC by epochs", decide(upto == sorted(upto), ", ".join(f"{a:.1f}" for a in upto))),
        ("BWT by epochs", decide(falling <= -0.8, f"{falling:+.2f}")),
    ]
    return combined(named, partly=2)


@claim("special-22")
def more_clients_help(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL never fall by more than the standard error from 2 to 4, 6 and 8
    clients per round."""
    named = []
    for name in BOTH:
        mine = cells.of(table="Participants", name=name, method="SPECIAL")
        found = [needed(first(mine, clients=n)) for n in ("2", "4", "6", "8")]
        steps = [difference(b, a) for a, b in zip(found, found[1:], strict=False)]
        good = all(d is not None and d.mean >= -d.error for d in steps)
        named.append((name, decide(good, ", ".join(f"{r.mean:.1f}" for r in found))))
    return combined(named)


# ---- theorems ------------------------------------------------------------------------------------
@claim("special-11")
def earlier_losses(cells: Cells) -> Verdict:
    """(a) At least 95% of participants' gradients in later tasks have a positive cosine with the
    earlier tasks' gradient at the task's start; (b) the earlier tasks' loss never rises (after 1,
    5, 10, 20 rounds) above what (a), the measured smoothness and the bound on the distance allow.
    The theorem's own constants cannot be measured. Whether the rise falls from round 10 to 20 is
    reported. Linear model, digits."""
    mine = cells.of(table="Theory", setting="T 20")
    share, ratio = (needed(first(mine, name=n)) for n in ("aligned share", "rise over its bound"))
    largest = max(ratio.values.values())
    aligned = decide(level(share) >= 95.0, f"{share.mean:.1f}% aligned")
    verdict = combined(
        [("a", aligned), ("b", decide(largest <= 1.0, f"largest ratio {largest:.3f}"))]
    )
    rises = [(t, first(mine, name=f"rise after {t}")) for t in (1, 5, 10, 20)]
    text = ", ".join(f"{t}: {r.mean:+.3f}" for t, r in rises if r is not None)
    return also(verdict, f"rise of the loss after rounds {text}")


@claim("special-12")
def gradient_decays(cells: Cells) -> Verdict:
    """Smallest squared gradient norm of all tasks' summed losses during the last task: slope
    between -1.5 and -0.3 against T from 5 to 80 (both in logs), and falling from N = 2 to 4 and 8.
    Linear model, digits."""
    mine, times = cells.of(table="Theory", name="smallest gradient"), (5, 10, 20, 40, 80)
    slope = power_law(times, [level(needed(first(mine, setting=f"T {t}"))) for t in times])
    falling = [level(needed(first(mine, setting=s))) for s in ("N 2", "T 20", "N 8")]
    falls = decide(falling == sorted(falling, reverse=True), ", ".join(f"{v:.2e}" for v in falling))
    return combined([("T", decide(-1.5 <= slope <= -0.3, f"slope {slope:+.2f}")), ("N", falls)])
