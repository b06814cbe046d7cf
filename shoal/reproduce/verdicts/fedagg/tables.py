"""Verdicts on FedAgg's tables. Every gain stands beside FedAvg at the rate that FedAgg chose."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, gap, told
from shoal.reproduce.verdicts.ranking import leads, one, pair, pairs, parts, yes

CONTROL = "FedAvg at FedAgg's rate"
ADAPTIVE = ("FedAdam", "FedAdagrad", "FedYogi")
LINEAR = ("MNIST Linear IID", "MNIST Linear two shards")


def _printed(cells: Cells, table: str = "Table III") -> Cells:
    return cells.of(table=table, name="test_accuracy")


def _final(cells: Cells) -> Cells:
    return cells.of(table="Linear", name="final accuracy")


def _with_control(verdict: Verdict, cells: Cells, by: str = "setting") -> Verdict:
    """The verdict, and what is left of the gain beside the control."""
    left = pairs(cells, "FedAgg", CONTROL, by)
    if not left or verdict.answer == "not run":
        return verdict
    return Verdict(verdict.answer, f"{verdict.numbers}; over {CONTROL}: {told(left)}")


@claim("fedagg-01")
def first_at_20(cells: Cells) -> Verdict:
    """20%: FedAgg minus the best other method above its standard error in every setting run;
    partly: in more than half. The control is told, and does not count as a method."""
    mine = _printed(cells).of(participation="20%")
    gaps = leads(mine, "FedAgg", "setting", without=(CONTROL,))
    return _with_control(all_above(gaps, partly=0.5 + 1e-6), mine)


@claim("fedagg-02")
def first_at_100(cells: Cells) -> Verdict:
    """100%: FedAgg first by more than the standard error in more than half of the settings run."""
    mine = _final(cells).of(participation="100%")
    gaps = leads(mine, "FedAgg", "setting", without=(CONTROL,))
    return _with_control(all_above(gaps, holds=0.5 + 1e-6), mine)


@claim("fedagg-03")
def gain_on_linear(cells: Cells) -> Verdict:
    """MNIST, linear: FedAgg minus FedAvg above its standard error in both partitions at both
    ratios, and within 1 point of the printed gain. Partly: the first."""
    mine = _printed(cells).of(setting=LINEAR)
    gaps, near = [], []
    for result in mine.of(method="FedAgg"):
        same = mine.of(
            setting=result.columns["setting"], participation=result.columns["participation"]
        )
        found, base = pair(same, "FedAgg", "FedAvg"), one(same, method="FedAvg")
        if found is None or base is None or result.printed is None or base.printed is None:
            continue
        gaps.append(found)
        near.append(abs(found.mean - (result.printed - base.printed)) <= 1.0)
    if not gaps:
        return NOT_RUN
    size = yes(all(near), f"{sum(near)} of {len(near)} gains within 1 point of the printed one")
    verdict = parts([("order", all_above(gaps)), ("size", size)], needed=("order",))
    return _with_control(verdict, mine)


@claim("fedagg-04")
def above_fedavg(cells: Cells) -> Verdict:
    """FedAgg minus FedAvg above its standard error in every setting run, and at least 4 points on
    MNIST-CNN with two shards. Partly: the first."""
    mine = _printed(cells).of(participation="20%")
    gaps = pairs(mine, "FedAgg", "FedAvg", "setting")
    shards = pair(mine.of(setting="MNIST-CNN two shards"), "FedAgg", "FedAvg")
    large = NOT_RUN if shards is None else yes(shards.mean >= 4.0, told([shards]))
    named = [("every setting", all_above(gaps, partly=0.5 + 1e-6)), ("MNIST-CNN, shards", large)]
    return _with_control(parts(named, needed=("every setting",)), mine)


@claim("fedagg-05")
def more_clients_help(cells: Cells) -> Verdict:
    """Linear models: FedAgg at 100% minus 20% above -SE in every setting and above +SE in more than
    half."""
    mine = _final(cells).of(method="FedAgg")
    gaps = _by_ratio(mine)
    if not gaps:
        return NOT_RUN
    never = yes(all(g.mean > -g.error for g in gaps), told(gaps))
    return parts([("never worse", never), ("better", all_above(gaps, holds=0.5 + 1e-6))])


def _by_ratio(cells: Cells) -> list[Gap]:
    out = []
    for setting in cells.values("setting"):
        few, all_ = (one(cells, setting=setting, participation=p) for p in ("20%", "100%"))
        found = gap(all_, few) if few is not None and all_ is not None else None
        out += [found] if found is not None else []
    return out


@claim("fedagg-06")
def robust_to_skew(cells: Cells) -> Verdict:
    """(a) IID above the skewed split for FedAgg; (b) the drop from IID to the most skewed split
    smaller than FedAvg's by more than its standard error, in every pair of settings run."""
    mine = _printed(cells).of(participation="20%")
    drops: dict[str, list[float]] = {}
    gaps: list[Gap] = []
    for iid, skewed in (
        LINEAR,
        ("MNIST-CNN IID", "MNIST-CNN two shards"),
        ("CIFAR-10-CNN IID", "CIFAR-10-CNN Dirichlet 0.6"),
    ):
        there, here = (pair(mine.of(setting=s), "FedAgg", "FedAvg") for s in (skewed, iid))
        if there is None or here is None:
            continue
        error = (there.error**2 + here.error**2) ** 0.5
        gaps.append(Gap(there.mean - here.mean, error, there.seeds, {}))
        for method in ("FedAgg", "FedAvg"):
            a, b = (one(mine, setting=s, method=method) for s in (iid, skewed))
            if a is not None and b is not None and a.mean is not None and b.mean is not None:
                drops.setdefault(method, []).append(a.mean - b.mean)
    if not gaps:
        return NOT_RUN
    text = "; ".join(f"{m} drops {', '.join(f'{d:.2f}' for d in v)}" for m, v in drops.items())
    ordered = yes(all(d > 0 for d in drops["FedAgg"]), text)
    return parts([("ordered", ordered), ("smaller drop", all_above(gaps, partly=0.5 + 1e-6))])


@claim("fedagg-07")
def beats_adaptive_servers(cells: Cells) -> Verdict:
    """(a) FedAgg minus the best of FedAdam, FedAdagrad and FedYogi above its standard error in
    every setting run; (b) FedAdam and FedYogi above FedAvg in more than half."""
    found = _printed(cells, "Table V")
    mine = found if len(found) else _final(cells).of(participation="20%")
    gaps = leads(mine.of(method=("FedAgg", *ADAPTIVE)), "FedAgg", "setting")
    over = [g for m in ("FedAdam", "FedYogi") for g in pairs(mine, m, "FedAvg", "setting")]
    named = [("a", all_above(gaps, partly=0.5 + 1e-6)), ("b", all_above(over, holds=0.5 + 1e-6))]
    return _with_control(parts(named), mine)


@claim("fedagg-08")
def other_networks(cells: Cells) -> Verdict:
    """Table VI: FedAgg minus FedAvg above its standard error for every network run."""
    return all_above(pairs(_printed(cells, "Table VI"), "FedAgg", "FedAvg", "model"))


@claim("fedagg-09")
def converges_faster(cells: Cells) -> Verdict:
    """MNIST, linear, 20%: (a) fewer rounds to 97% of FedAvg's final accuracy than every baseline;
    (b) training loss below FedAvg's in 90% of the rounds; (c) accuracy fluctuates no more than
    FedAvg's. Partly: (b), and (a) against FedAvg."""
    mine = _final(cells).of(participation="20%", dataset="MNIST")
    quick, quicker, lower, calm, text = [], [], [], [], []
    for setting in mine.values("setting"):
        here = {r.method: r for r in mine.of(setting=setting) if r.method != CONTROL}
        base, own = here.get("FedAvg"), here.get("FedAgg")
        if base is None or own is None or base.mean is None:
            continue
        for seed in set(base.runs) & set(own.runs):
            level = 0.97 * base.values[seed] / 100.0
            need = {m: _until(r.reading(seed).accuracy, level) for m, r in here.items()}
            others = [n for m, n in need.items() if m != "FedAgg"]
            quick.append(need["FedAgg"] < min(others))
            quicker.append(need["FedAgg"] < need["FedAvg"])
            losses = [[r["train_loss"] for r in x.reading(seed).records] for x in (own, base)]
            share = sum(a < b for a, b in zip(*losses, strict=True)) / len(losses[0])
            lower.append(share >= 0.9)
            text.append(f"{setting}: rounds {need}, loss lower in {share:.0%}")
        wave = cells.of(table="Linear", name="fluctuation", setting=setting, participation="20%")
        change = pair(wave, "FedAgg", "FedAvg")
        calm.append(change is not None and change.mean <= change.error)
    if not quick:
        return NOT_RUN
    named = [
        ("a", yes(all(quick), text[0])),
        ("b", yes(all(lower), f"{sum(lower)} of {len(lower)} runs")),
        ("c", yes(all(calm), f"{sum(calm)} of {len(calm)} settings")),
    ]
    verdict = parts(named, partly=9)
    if verdict.answer == "fails" and all(lower) and all(quicker):
        return Verdict("partly", verdict.numbers)
    return verdict


def _until(accuracy: list[float | None], level: float) -> int:
    found = (n for n, a in enumerate(accuracy, 1) if a is not None and a >= level)
    return next(found, len(accuracy) + 1)
