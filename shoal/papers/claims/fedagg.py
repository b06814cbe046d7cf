"""FedAgg's claims. Every gain is reported next to that of FedAvg at the rate that FedAgg chose."""

from __future__ import annotations

from shoal.papers.claims import NOT_RUN, Cells, Verdict, claim, needed, register
from shoal.papers.claims.rules import (
    MOST,
    Above,
    AllOf,
    AlsoReport,
    AtLeast,
    Correlates,
    Differences,
    Lead,
    NeverWorse,
    Over,
    Where,
    all_above,
    also,
    as_text,
    combined,
    decide,
    difference,
    first,
    level,
    pair,
    pairs,
    rounds_until,
    shown,
)
from shoal.papers.measures import power_law

CONTROL = "FedAvg at FedAgg's rate"
ADAPTIVE = ("FedAdam", "FedAdagrad", "FedYogi")
LINEAR = ("MNIST Linear IID", "MNIST Linear two shards")
SHARDS = "MNIST-CNN two shards"
SPLITS = (
    LINEAR,
    ("MNIST-CNN IID", SHARDS),
    ("CIFAR-10-CNN IID", "CIFAR-10-CNN Dirichlet 0.6"),
)

PRINTED: Where = {"table": "Table III", "name": "test_accuracy"}
AT_20: Where = {**PRINTED, "participation": "20%"}
FINAL: Where = {"table": "Linear", "name": "final accuracy"}
AT_100: Where = {**FINAL, "participation": "100%"}
LABEL = f"over {CONTROL}:"
LEFT = Over("FedAgg", (CONTROL,), by="setting")  # what is left of a gain
OVER_FEDAVG = Over("FedAgg", ("FedAvg",), by="setting")
AHEAD = Lead("FedAgg", by="setting", without=(CONTROL,))


MORE_CLIENTS = Over("100%", ("20%",), by="setting", column="participation")
OWN: Where = {**FINAL, "method": "FedAgg"}

register(
    {
        "fedagg-01": AlsoReport(Above(AHEAD, AT_20, partly=MOST), LABEL, LEFT, AT_20),
        "fedagg-02": AlsoReport(Above(AHEAD, AT_100, holds=MOST), LABEL, LEFT, AT_100),
        "fedagg-04": AlsoReport(
            AllOf(
                {
                    "every setting": Above(OVER_FEDAVG, AT_20, partly=MOST),
                    "MNIST-CNN, shards": AtLeast(OVER_FEDAVG, {**AT_20, "setting": SHARDS}, 4.0),
                },
                needed=("every setting",),
            ),
            LABEL,
            LEFT,
            AT_20,
        ),
        "fedagg-05": AllOf(
            {
                "never worse": NeverWorse((MORE_CLIENTS,), OWN),
                "better": Above(MORE_CLIENTS, OWN, holds=MOST),
            }
        ),
        "fedagg-08": Above(
            Over("FedAgg", ("FedAvg",), by="model"), {**PRINTED, "table": "Table VI"}
        ),
    }
)


def _with_control(verdict: Verdict, cells: Cells) -> Verdict:
    """The verdict, and what is left of the gain next to the control."""
    left = LEFT.differences(cells)
    return also(verdict, f"{LABEL} {as_text(left)}" if left else "")


# ---- tables --------------------------------------------------------------------------------------
@claim("fedagg-03")
def gain_on_linear(cells: Cells) -> Verdict:
    """MNIST, linear: FedAgg minus FedAvg above its standard error in both partitions at both
    ratios, and within 1 point of the printed gain. Partly: the first."""
    mine = cells.of(**{**PRINTED, "setting": LINEAR})
    found, near = [], []
    for result in mine.of(method="FedAgg"):
        place = {name: result.columns[name] for name in ("setting", "participation")}
        base = first(mine, method="FedAvg", **place)
        gain = difference(result, base)
        if gain is None or base is None or result.printed is None or base.printed is None:
            continue
        found.append(gain)
        near.append(abs(gain.mean - (result.printed - base.printed)) <= 1.0)
    size = decide(
        all(needed(near)), f"{sum(near)} of {len(near)} gains within 1 point of the printed one"
    )
    verdict = combined([("order", all_above(found)), ("size", size)], needed=("order",))
    return _with_control(verdict, mine)


@claim("fedagg-06")
def robust_to_skew(cells: Cells) -> Verdict:
    """(a) IID above the skewed split for FedAgg; (b) the drop from IID to the most skewed split
    smaller than FedAvg's by more than its standard error, in every pair of settings run."""
    mine = cells.of(**AT_20)
    drops: dict[str, list[float]] = {"FedAgg": [], "FedAvg": []}
    found: Differences = []
    for iid, skewed in SPLITS:
        there, here = (pair(mine.of(setting=s), "FedAgg", "FedAvg") for s in (skewed, iid))
        if there is None or here is None:
            continue
        found.append(there.minus(here))
        for method, lost in drops.items():
            high, low = (first(mine, setting=s, method=method) for s in (iid, skewed))
            lost.append(level(high) - level(low))
    needed(found)
    text = "; ".join(f"{m} drops {', '.join(f'{d:.2f}' for d in v)}" for m, v in drops.items())
    ordered = decide(all(d > 0 for d in drops["FedAgg"]), text)
    return combined([("ordered", ordered), ("smaller drop", all_above(found, partly=MOST))])


@claim("fedagg-07")
def beats_adaptive_servers(cells: Cells) -> Verdict:
    """(a) FedAgg minus the best of FedAdam, FedAdagrad and FedYogi above its standard error in
    every setting run; (b) FedAdam and FedYogi above FedAvg in more than half."""
    table = cells.of(table="Table V", name="test_accuracy")
    mine = table if len(table) else cells.of(**FINAL, participation="20%")
    ahead = Lead("FedAgg", by="setting").differences(mine.of(method=("FedAgg", *ADAPTIVE)))
    over = [d for m in ("FedAdam", "FedYogi") for d in pairs(mine, m, "FedAvg", "setting")]
    named = [("a", all_above(ahead, partly=MOST)), ("b", all_above(over, holds=MOST))]
    return _with_control(combined(named), mine)


@claim("fedagg-09")
def converges_faster(cells: Cells) -> Verdict:
    """MNIST, linear, 20%: (a) fewer rounds to 97% of FedAvg's final accuracy than every baseline;
    (b) training loss below FedAvg's in 90% of the rounds; (c) accuracy fluctuates no more than
    FedAvg's. Partly: (b), and (a) against FedAvg."""
    mine = cells.of(**FINAL, participation="20%", dataset="MNIST")
    quick, quicker, lower, calm, text = [], [], [], [], []
    for setting in mine.values("setting"):
        here = {r.method: r for r in mine.of(setting=setting) if r.method != CONTROL}
        base, own = here.get("FedAvg"), here.get("FedAgg")
        if base is None or own is None or base.mean is None:
            continue
        for seed in set(base.runs) & set(own.runs):
            wanted = 0.97 * base.values[seed] / 100.0
            need = {m: rounds_until(r.run_files(seed).accuracy, wanted) for m, r in here.items()}
            quick.append(need["FedAgg"] < min(n for m, n in need.items() if m != "FedAgg"))
            quicker.append(need["FedAgg"] < need["FedAvg"])
            losses = [[r["train_loss"] for r in x.run_files(seed).records] for x in (own, base)]
            share = sum(a < b for a, b in zip(*losses, strict=True)) / len(losses[0])
            lower.append(share >= 0.9)
            text.append(f"{setting}: rounds {need}, loss lower in {share:.0%}")
        wave = cells.of(table="Linear", name="fluctuation", setting=setting, participation="20%")
        change = pair(wave, "FedAgg", "FedAvg")
        calm.append(change is not None and not change.clear)
    named = [
        ("a", decide(all(needed(quick)), text[0])),
        ("b", decide(all(lower), f"{sum(lower)} of {len(lower)} runs")),
        ("c", decide(all(calm), f"{sum(calm)} of {len(calm)} settings")),
    ]
    verdict = combined(named, partly=9)
    if verdict.answer == "fails" and all(lower) and all(quicker):
        return Verdict("partly", verdict.numbers)
    return verdict


# ---- alpha, the fixed point, rates ---------------------------------------------------------------
@claim("fedagg-10")
def smaller_alpha(cells: Cells) -> Verdict:
    """Rank correlation of final accuracy with alpha at most -0.8, IID and shards. FedAvg at the
    mean rate of each alpha is reported next to it."""
    rule = Correlates("alpha", {}, -0.8, least=5, counted="alphas")
    mine = cells.of(table="Alpha", name="final accuracy")
    named: list[tuple[str, Verdict]] = []
    extra = []
    for partition in mine.values("partition"):
        for method in ("FedAgg", CONTROL):
            found = rule.decide(mine.of(partition=partition, method=method))
            text = f"{partition}, {method}: {found.numbers}"
            if found != NOT_RUN and method == "FedAgg":
                named.append((partition, Verdict(found.answer, text)))
            elif found != NOT_RUN:
                extra.append(text)
    return also(combined(named), "; ".join(extra))


@claim("fedagg-11")
def fixed_point_is_reached(cells: Cells) -> Verdict:
    """At the first and the last model of a FedAvg run both changes are below 0.001 within 100
    sweeps; partly: in 90%. The largest rate at the end is reported: at the fixed point it is 0."""
    names = ("sweeps at the first model", "sweeps at the last model")
    sweeps = needed(cells.of(table="Fixed point", name=names).figures())
    met = sum(s <= 100 for s in sweeps)
    rates = cells.of(table="Fixed point", name="largest rate at the end of the sweeps")
    left = ", ".join(f"{r.mean:.2e}" for r in rates if r.mean is not None)
    text = f"{met} of {len(sweeps)} reached ({min(sweeps):g} to {max(sweeps):g} sweeps)"
    return decide(met == len(sweeps), f"{text}; rates left: {left}", met / len(sweeps) >= 0.9)


@claim("fedagg-12")
def rates_inside(cells: Cells) -> Verdict:
    """All raw rates of all clients, epochs and rounds between 0 and 1, for the open-loop reading;
    the closed loop is reported next to it."""
    mine = cells.of(table=("Readings", "Linear", "Table III"), name="rates between 0 and 1")
    least = min(needed(mine.of(method=("FedAgg", "open loop")).figures()))
    rest = shown(r for r in mine if r.method not in ("FedAgg", "open loop", "FedAvg", CONTROL))
    return decide(least == 100.0, f"open loop: least {least:.2f}% inside; {rest}")


@claim("fedagg-13")
def closed_form(cells: Cells) -> Verdict:
    """Eq. (15) against a Newton step on eq. (13): relative difference below 1e-6 in 100 random
    instances and on the walks from the first and the last model of every run."""
    largest = max(needed(cells.of(name="error of the closed form").figures()))
    return decide(largest < 1e-6, f"largest difference {largest:.1e}")


@claim("fedagg-14")
def clients_stay_close(cells: Cells) -> Verdict:
    """Part (b) only: on two shards, the mean distance of local models to their mean is smaller than
    that of FedAvg at the same mean rate, by more than its standard error. Part (a), the bound,
    needs gradient norms that are not recorded."""
    mine = cells.of(table="Linear", name="mean distance of clients", participation="20%")
    shards = mine.of(setting=[s for s in mine.values("setting") if "shards" in s])
    return all_above(pairs(shards, CONTROL, "FedAgg", "setting"))


@claim("fedagg-15")
def probe_is_linear(cells: Cells) -> Verdict:
    """Gradients per round, probe included: slope against clients (10 to 100) and against epochs (1
    to 5), both in logs, between 0.9 and 1.1; and at most 3 times FedAvg's throughout."""
    mine = cells.of(table="Probe cost", name="gradients a round")
    own, base = (
        {r.columns["setting"]: r.mean for r in mine.of(method=m) if r.mean}
        for m in ("FedAgg", "FedAvg")
    )
    named = []
    for axis, counts, middle in (("N", (10, 20, 50, 100), 20), ("L", (1, 3, 5), 3)):
        keys = ["N 20" if n == middle else f"{axis} {n}" for n in counts]
        there = needed([own[key] for key in keys if key in own and key in base], len(keys))
        slope = power_law(counts, there)
        named.append((axis, decide(0.9 <= slope <= 1.1, f"slope {slope:.2f}")))
    ratios = [own[key] / base[key] for key in own]
    text = f"{min(ratios):.2f} to {max(ratios):.2f} times FedAvg's"
    return combined([*named, ("modest", decide(max(ratios) <= 3.0, text))])
