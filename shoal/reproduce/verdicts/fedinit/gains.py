"""Verdicts on what relaxed initialisation gains. The authors' simulator (independent sampling,
clipping, mean displacement) is told beside every gain where it was run."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import Gap, all_above, told
from shoal.reproduce.verdicts.ranking import (
    lead,
    leads,
    on_common_seeds,
    one,
    pair,
    pairs,
    parts,
    yes,
)

SKEWED = ("10 of 100 Dirichlet 0.1", "10 of 200 Dirichlet 0.1")


def table1(cells: Cells, variant: str = "paper") -> Cells:
    return cells.of(table="Table 1", name="test_accuracy", variant=variant)


def _beside(verdict: Verdict, cells: Cells) -> Verdict:
    there = pairs(table1(cells, "authors"), "FedInit", "FedAvg", "setup")
    if not there or verdict.answer == "not run":
        return verdict
    return Verdict(verdict.answer, f"{verdict.numbers}; simulator's reading: {told(there)}")


@claim("fedinit-01")
def above_fedavg(cells: Cells) -> Verdict:
    """FedInit minus FedAvg above its standard error in every setup run."""
    gaps = pairs(table1(cells), "FedInit", "FedAvg", "setup")
    return _beside(all_above(gaps, partly=0.5 + 1e-6), cells)


@claim("fedinit-02")
def best_of_seven(cells: Cells) -> Verdict:
    """FedInit first by more than its standard error in more than half of the setups; partly: first
    or second in all. Rates of the baselines are the paper's, not retuned."""
    mine = table1(cells)
    gaps = leads(mine, "FedInit", "setup")
    if not gaps:
        return NOT_RUN
    ranks = []
    for setup in mine.values("setup"):
        own = one(mine, setup=setup, method="FedInit")
        others = [r for r in mine.of(setup=setup) if r.method != "FedInit"]
        if own is not None:
            own, *others = on_common_seeds([own, *others])
            ranks.append(1 + sum((r.mean or 0) > (own.mean or 0) for r in others))
    verdict = all_above(gaps, holds=0.5 + 1e-6)
    answer = verdict.answer
    if answer == "fails" and all(rank <= 2 for rank in ranks):
        answer = "partly"
    return Verdict(answer, f"ranks {ranks}; {verdict.numbers}")


@claim("fedinit-03")
def three_points(cells: Cells) -> Verdict:
    """The gain at least 3 points in every setup; partly: at least 1 in every one."""
    gaps = pairs(table1(cells), "FedInit", "FedAvg", "setup")
    if not gaps:
        return NOT_RUN
    least = min(g.mean for g in gaps)
    return Verdict("holds" if least >= 3 else "partly" if least >= 1 else "fails", told(gaps))


@claim("fedinit-04")
def loses_less_with_fewer(cells: Cells) -> Verdict:
    """From 10 of 100 to 10 of 200 clients FedInit's accuracy falls less than FedAvg's, by more than
    the standard error, at both levels of skew; and by less than 0.5 points at Dirichlet 0.1."""
    mine = table1(cells)
    gaps, drops = [], []
    for skew in ("0.6", "0.1"):
        many, few = (
            pair(mine.of(setup=f"10 of {n} Dirichlet {skew}"), "FedInit", "FedAvg")
            for n in (100, 200)
        )
        if many is None or few is None:
            return NOT_RUN
        error = (many.error**2 + few.error**2) ** 0.5
        gaps.append(Gap(few.mean - many.mean, error, few.seeds, {}))
        own = [one(mine, setup=f"10 of {n} Dirichlet {skew}", method="FedInit") for n in (100, 200)]
        drops.append(sum((r.mean or 0) * s for r, s in zip(own, (1, -1), strict=True) if r))
    small = yes(drops[1] < 0.5, f"FedInit drops {drops[0]:.2f} and {drops[1]:.2f}")
    return parts([("less than FedAvg", all_above(gaps)), ("below 0.5", small)])


@claim("fedinit-05")
def stable_on_cifar100(cells: Cells) -> Verdict:
    """From 10 of 100 to 10 of 200 clients SCAFFOLD's accuracy falls more than FedInit's, by more
    than its standard error, and FedInit is first with 10 of 200. 20 superclasses, a small
    network."""
    mine = cells.of(table="CIFAR-100 small", name="final accuracy")
    many, few = (pair(mine.of(setup=f"10 of {n}"), "FedInit", "SCAFFOLD") for n in (100, 200))
    first = lead(mine.of(setup="10 of 200"), "FedInit")
    if many is None or few is None or first is None:
        return NOT_RUN
    error = (many.error**2 + few.error**2) ** 0.5
    less = Gap(few.mean - many.mean, error, few.seeds, {})
    low = yes(first.mean > 0, f"ahead of the best other by {first.mean:+.2f}")
    return parts([("drop", all_above([less])), ("first", low)])


@claim("fedinit-06")
def pays_with_skew(cells: Cells) -> Verdict:
    """The gain at Dirichlet 0.1 larger than at 0.6 in more than half of the matched cells (with and
    without noise); second part: the gain with noise larger than without, in more than half."""
    mine = cells.of(table="Heterogeneity", name="final accuracy")

    def gain(skew: str, noise: str) -> Gap | None:
        return pair(mine.of(skew=skew, noise=noise), "FedInit", "FedAvg")

    kinds = ("with noise", "without noise")
    skewed = [(gain("Dirichlet 0.1", n), gain("Dirichlet 0.6", n)) for n in kinds]
    noisy = [(gain(s, kinds[0]), gain(s, kinds[1])) for s in mine.values("skew")]
    named = []
    for name, both in (("skew", skewed), ("noise", noisy)):
        known = [(a, b) for a, b in both if a is not None and b is not None]
        if not known:
            return NOT_RUN
        more = sum(a.mean > b.mean for a, b in known)
        text = ", ".join(f"{a.mean:+.2f} against {b.mean:+.2f}" for a, b in known)
        named.append((name, yes(2 * more > len(known), f"{more} of {len(known)}: {text}")))
    return parts(named)


def _with_ri(cells: Cells, algorithm: str) -> list[Gap]:
    mine = cells.of(table="Table 2", name="test_accuracy", variant="paper")
    return pairs(mine.of(base_algorithm=algorithm), "+RI", "vanilla", "setup")


@claim("fedinit-07")
def helps_other_methods(cells: Cells) -> Verdict:
    """With relaxed initialisation minus without above its standard error in every cell of six
    methods; partly: the mean over cells positive for at least four methods."""
    mine = cells.of(table="Table 2", name="test_accuracy", variant="paper")
    by = {a: _with_ri(cells, a) for a in mine.values("base_algorithm")}
    gaps = [g for found in by.values() for g in found]
    if not gaps:
        return NOT_RUN
    means = {a: sum(g.mean for g in f) / len(f) for a, f in by.items() if f}
    verdict = all_above(gaps)
    answer = verdict.answer
    if answer == "fails" and sum(m > 0 for m in means.values()) >= 4:
        answer = "partly"
    text = ", ".join(f"{a} {m:+.2f}" for a, m in means.items())
    return Verdict(answer, f"{verdict.numbers}; {text}")


@claim("fedinit-08")
def two_points(cells: Cells) -> Verdict:
    """FedAvg and SCAFFOLD gain at least 2 points in every setup; partly: at least 1."""
    gaps = [g for a in ("FedAvg", "SCAFFOLD") for g in _with_ri(cells, a)]
    if not gaps:
        return NOT_RUN
    least = min(g.mean for g in gaps)
    return Verdict("holds" if least >= 2 else "partly" if least >= 1 else "fails", told(gaps))


@claim("fedinit-15")
def cost(cells: Cells) -> Verdict:
    """(a) Communication and gradients equal FedAvg's exactly; (b) what a client keeps is told; (c)
    seconds a round at most 1.10 times FedAvg's and the smallest of the other six; (d) FedSAM the
    slowest."""
    mine = cells.of(table="Table 8")
    same, text = [], []
    for name in ("communication_ratio", "gradient_calculation_ratio"):
        found = [one(mine, name=name, method=m) for m in ("FedInit", "FedAvg")]
        if found[0] is None or found[1] is None:
            return NOT_RUN
        same.append(found[0].mean == found[1].mean)
    kept = one(mine, name="storage_ratio", method="FedInit")
    text.append(f"storage {kept.mean:.2f}x" if kept is not None and kept.mean is not None else "")
    seconds = {r.method: r.mean or 0.0 for r in mine.of(name="seconds a round")}
    ratio = seconds["FedInit"] / seconds["FedAvg"]
    others = [s for m, s in seconds.items() if m not in ("FedAvg", "FedInit")]
    times = ", ".join(f"{m} {s / seconds['FedAvg']:.2f}" for m, s in seconds.items())
    named = [
        ("a", yes(all(same), "; ".join(text))),
        ("c", yes(ratio <= 1.1 and seconds["FedInit"] <= min(others), times)),
        ("d", yes(seconds["FedSAM"] == max(seconds.values()), "slowest of all")),
    ]
    return parts(named)


@claim("fedinit-16")
def fewer_rounds(cells: Cells) -> Verdict:
    """Rounds to 97% of FedAvg's final accuracy: FedAvg's over FedInit's at least 1.4 at Dirichlet
    0.1, 10 of 100, and FedInit first of seven. Partly: one of the two."""
    mine = table1(cells).of(setup=SKEWED[0])
    base = one(mine, method="FedAvg")
    if base is None or one(mine, method="FedInit") is None:
        return NOT_RUN
    needed: dict[str, list[float]] = {}
    for result in mine:
        for seed in set(result.values) & set(base.values):
            level = 0.97 * base.values[seed] / 100.0
            accuracy = result.reading(seed).accuracy
            rounds = (n for n, a in enumerate(accuracy, 1) if a is not None and a >= level)
            needed.setdefault(result.method, []).append(float(next(rounds, len(accuracy) + 1)))
    mean = {m: sum(v) / len(v) for m, v in needed.items()}
    ratio = mean["FedAvg"] / mean["FedInit"]
    text = ", ".join(f"{m} {v:.0f}" for m, v in mean.items())
    first = yes(mean["FedInit"] == min(mean.values()), text)
    return parts([("faster", yes(ratio >= 1.4, f"{ratio:.2f} times")), ("first", first)])
