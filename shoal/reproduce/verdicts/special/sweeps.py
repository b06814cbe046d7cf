"""Verdicts on lambda, rounds, epochs, skew and participation."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import gap
from shoal.reproduce.results import Result
from shoal.reproduce.verdicts.ranking import one, parts, spearman, yes


def _lambdas(cells: Cells, name: str) -> list[tuple[float, Result]]:
    """Every lambda and its figure, in order."""
    found = []
    for result in cells.of(name=name):
        method = {"FedAvg with server rate 1/i": "lambda 0", "SPECIAL lambda 0.05": "lambda 0.05",
                  "SPECIAL": "lambda 0.25"}.get(result.method, result.method)  # fmt: skip
        if method.startswith("lambda ") and result.mean is not None:
            found.append((float(method.split()[1]), result))
    return sorted(found, key=lambda pair: pair[0])


def _swept(cells: Cells) -> list[tuple[str, Cells]]:
    """The sequences with a sweep over lambda."""
    mine = cells.of(table="Lambda")
    out = [(d, mine.of(dataset=d)) for d in mine.values("dataset")]
    return [*out, ("Office-Caltech-10", cells.of(table="Office-Caltech-10"))]


@claim("special-07")
def forgetting_falls(cells: Cells) -> Verdict:
    """Rank correlation of BWT with lambda at least 0.9 on every sequence swept."""
    named = []
    for data, found in _swept(cells):
        points = _lambdas(found, "BWT")
        if len(points) >= 5:
            rho = spearman([p[0] for p in points], [p[1].mean or 0.0 for p in points])
            named.append((data, yes(rho >= 0.9, f"{rho:+.2f} over {len(points)} lambdas")))
    return parts(named)


@claim("special-08")
def interior_peak(cells: Cells) -> Verdict:
    """(a) The best ACC at 0 < lambda < 1 with both ends lower by more than the standard error; (b)
    ACC at 0.2 and 0.3 within 1 point of 0.25 on the digit sequence."""
    named = []
    for data, found in _swept(cells):
        points = _lambdas(found, "ACC")
        if len(points) < 5:
            continue
        best = max(points, key=lambda p: p[1].mean or 0.0)
        gaps = [gap(best[1], end[1]) for end in (points[0], points[-1])]
        good = all(g is not None and g.mean > g.error for g in gaps) and 0 < best[0] < 1
        curve = ", ".join(f"{lam:g}: {r.mean:.1f}" for lam, r in points)
        named.append((f"peak, {data}", yes(good, f"best at {best[0]:g} ({curve})")))
        near = {lam: r.mean or 0.0 for lam, r in points if lam in (0.2, 0.25, 0.3)}
        if data == "Digit-10" and len(near) == 3:
            flat = max(abs(v - near[0.25]) for v in near.values())
            named.append(("flat", yes(flat <= 1.0, f"{flat:.2f} points")))
    return parts(named)


@claim("special-09")
def client_side_sweep(cells: Cells) -> Verdict:
    """SPECIAL-C on the digits: rank correlation of BWT with lambda at least 0.9; the best ACC at
    0.2 or 0.4, above both ends by more than the standard error. lambda 0 is FedAvg with server rate
    1/i, not FedAvg: both are told."""
    mine = cells.of(table="Table 13")
    points = [(lam, one(mine, name="BWT", method=f"SPECIAL-C(lambda={lam})"),
               one(mine, name="ACC", method=f"SPECIAL-C(lambda={lam})"))
              for lam in ("0", "0.2", "0.4", "0.6", "0.8", "1.0")]  # fmt: skip
    known = [(float(lam), b, a) for lam, b, a in points if b is not None and a is not None]
    if len(known) < 6:
        return NOT_RUN
    rho = spearman([k[0] for k in known], [k[1].mean or 0.0 for k in known])
    best = max(known, key=lambda k: k[2].mean or 0.0)
    ends = [gap(best[2], known[i][2]) for i in (0, -1)]
    good = best[0] in (0.2, 0.4) and all(g is not None and g.mean > g.error for g in ends)
    plain = one(mine, name="ACC", method="FedAvg")
    text = ", ".join(f"{k[0]:g}: {k[2].mean:.1f}" for k in known)
    base = f"; FedAvg {plain.mean:.1f}" if plain is not None and plain.mean is not None else ""
    return parts([("BWT", yes(rho >= 0.9, f"{rho:+.2f}")), ("ACC", yes(good, text + base))])


def _along(cells: Cells, table: str, axis: str, name: str) -> list[tuple[float, float]]:
    found = cells.of(table=table, name=name, method="SPECIAL")
    return sorted((float(r.columns[axis]), r.mean) for r in found if r.mean is not None)


def _rho(points: list[tuple[float, float]]) -> float:
    return spearman([p[0] for p in points], [p[1] for p in points])


@claim("special-19")
def rounds_and_epochs(cells: Cells) -> Verdict:
    """Rank correlation of ACC with rounds at least 0.9; BWT lowest at an interior number of rounds;
    ACC increasing in epochs up to 5; rank correlation of BWT with epochs at most -0.8. Partly:
    two."""
    more, back = (_along(cells, "Rounds", "rounds", n) for n in ("ACC", "BWT"))
    longer, worse = (_along(cells, "Epochs", "epochs", n) for n in ("ACC", "BWT"))
    if len(more) < 4 or len(longer) < 4:
        return NOT_RUN
    least = min(back, key=lambda p: p[1])[0]
    upto = [a for e, a in longer if e <= 5]
    named = [
        ("ACC by rounds", yes(_rho(more) >= 0.9, f"{_rho(more):+.2f}")),
        ("BWT by rounds", yes(back[0][0] < least < back[-1][0], f"lowest at {least:g}")),
        ("ACC by epochs", yes(upto == sorted(upto), ", ".join(f"{a:.1f}" for a in upto))),
        ("BWT by epochs", yes(_rho(worse) <= -0.8, f"{_rho(worse):+.2f}")),
    ]
    return parts(named, partly=2)


@claim("special-20")
def skew_hurts(cells: Cells) -> Verdict:
    """Rank correlation of ACC with the Dirichlet level at least 0.8."""
    points = _along(cells, "Dirichlet", "alpha", "ACC")
    if len(points) < 4:
        return NOT_RUN
    return yes(_rho(points) >= 0.8, f"{_rho(points):+.2f} over {len(points)} levels")


@claim("special-22")
def more_clients_help(cells: Cells) -> Verdict:
    """ACC and BWT of SPECIAL never fall by more than the standard error from 2 to 4, 6 and 8
    clients a round."""
    named = []
    for name in ("ACC", "BWT"):
        mine = cells.of(table="Participants", name=name, method="SPECIAL")
        found = [r for n in ("2", "4", "6", "8") if (r := one(mine, clients=n)) is not None]
        if len(found) < 4:
            return NOT_RUN
        steps = [gap(b, a) for a, b in zip(found, found[1:], strict=False)]
        good = all(g is not None and g.mean >= -g.error for g in steps)
        named.append((name, yes(good, ", ".join(f"{r.mean:.1f}" for r in found))))
    return parts(named)
