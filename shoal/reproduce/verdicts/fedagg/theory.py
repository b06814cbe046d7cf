"""Verdicts on what FedAgg says of its weight alpha, its fixed point and its rates."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import all_above
from shoal.reproduce.slope import log_slope
from shoal.reproduce.verdicts.fedagg.tables import CONTROL
from shoal.reproduce.verdicts.ranking import pairs, parts, shown, spearman, yes


@claim("fedagg-10")
def smaller_alpha(cells: Cells) -> Verdict:
    """Rank correlation of final accuracy with alpha at most -0.8, IID and shards. FedAvg at the
    mean rate of each alpha is told beside it."""
    mine = cells.of(table="Alpha", name="final accuracy")
    named: list[tuple[str, Verdict]] = []
    extra: list[tuple[str, Verdict]] = []
    for partition in mine.values("partition"):
        for method in ("FedAgg", CONTROL):
            found = mine.of(partition=partition, method=method)
            points = [(float(r.columns["alpha"]), r.mean) for r in found if r.mean is not None]
            if len(points) < 5:
                continue
            rho = spearman([p[0] for p in points], [p[1] for p in points])
            text = f"{partition}, {method}: {rho:+.2f} over {len(points)} alphas"
            (named if method == "FedAgg" else extra).append((partition, yes(rho <= -0.8, text)))
    verdict = parts(named)
    return Verdict(verdict.answer, "; ".join([verdict.numbers, *(v.numbers for _, v in extra)]))


@claim("fedagg-11")
def fixed_point_is_reached(cells: Cells) -> Verdict:
    """At the first and the last model of a FedAvg run both changes are below 0.001 within 100
    sweeps; partly: in 90%. The largest rate at the end is told: at the fixed point it is 0."""
    names = ("sweeps at the first model", "sweeps at the last model")
    sweeps = [v for r in cells.of(table="Fixed point", name=names) for v in r.values.values()]
    if not sweeps:
        return NOT_RUN
    met = sum(s <= 100 for s in sweeps)
    rates = cells.of(table="Fixed point", name="largest rate at the end of the sweeps")
    text = (
        f"{met} of {len(sweeps)} reached ({min(sweeps):g} to {max(sweeps):g} sweeps); rates left: "
    )
    text += ", ".join(f"{r.mean:.2e}" for r in rates if r.mean is not None)
    share = met / len(sweeps)
    return Verdict("holds" if share == 1 else "partly" if share >= 0.9 else "fails", text)


@claim("fedagg-12")
def rates_inside(cells: Cells) -> Verdict:
    """All raw rates of all clients, epochs and rounds between 0 and 1, for the open-loop reading;
    the closed loop is told beside it."""
    mine = cells.of(table=("Readings", "Linear", "Table III"), name="rates between 0 and 1")
    shares = [v for r in mine if r.method in ("FedAgg", "open loop") for v in r.values.values()]
    if not shares:
        return NOT_RUN
    rest = shown(r for r in mine if r.method not in ("FedAgg", "open loop", "FedAvg", CONTROL))
    return yes(min(shares) == 100.0, f"open loop: least {min(shares):.2f}% inside; {rest}")


@claim("fedagg-13")
def closed_form(cells: Cells) -> Verdict:
    """Eq. (15) against a Newton step on eq. (13): relative difference below 1e-6 in 100 random
    instances and on the walks from the first and the last model of every run."""
    found = [v for r in cells.of(name="error of the closed form") for v in r.values.values()]
    return yes(max(found) < 1e-6, f"largest difference {max(found):.1e}") if found else NOT_RUN


@claim("fedagg-14")
def clients_stay_close(cells: Cells) -> Verdict:
    """Part (b) only: on two shards, the mean distance of local models to their mean is smaller than
    that of FedAvg at the same mean rate, by more than its standard error. Part (a), the bound,
    needs gradient norms that are not recorded."""
    mine = cells.of(table="Linear", name="mean distance of clients", partition="two shards")
    mine = mine if len(mine) else cells.of(table="Linear", name="mean distance of clients")
    gaps = pairs(mine.of(participation="20%"), CONTROL, "FedAgg", "setting")
    return all_above([g for g in gaps if "shards" in g.columns.get("setting", "")])


@claim("fedagg-15")
def probe_is_linear(cells: Cells) -> Verdict:
    """Gradients a round, probe included: slope against clients (10 to 100) and against epochs (1 to
    5), both in logs, between 0.9 and 1.1; and at most 3 times FedAvg's throughout."""
    mine = cells.of(table="Probe cost", name="gradients a round")
    own, base = (
        {r.columns["setting"]: r.mean for r in mine.of(method=m) if r.mean}
        for m in ("FedAgg", "FedAvg")
    )
    named = []
    for axis, counts, middle in (("N", (10, 20, 50, 100), 20), ("L", (1, 3, 5), 3)):
        keys = ["N 20" if n == middle else f"{axis} {n}" for n in counts]
        if any(key not in own or key not in base for key in keys):
            return NOT_RUN
        slope = log_slope(counts, [own[key] for key in keys])
        named.append((axis, yes(0.9 <= slope <= 1.1, f"slope {slope:.2f}")))
    ratios = [own[key] / base[key] for key in own]
    text = f"{min(ratios):.2f} to {max(ratios):.2f} times FedAvg's"
    return parts([*named, ("modest", yes(max(ratios) <= 3.0, text))])
