"""Verdicts on what FLASH's server does inside, from the Synthetic runs of Table 7."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import all_above
from shoal.reproduce.verdicts.ranking import between, one, pair, parts, yes

BEFORE3, AFTER3 = "beta3 in the 100 rounds before", "beta3 in the 5 rounds after"
RATE = "effective rate after the drift"


def _synthetic(cells: Cells) -> Cells:
    return cells.of(table="Table 7", task="Synthetic", variant="paper")


@claim("flash-13")
def turns_into_its_base(cells: Cells) -> Verdict:
    """Over the last 100 rounds before the drift, in every run: median over parameters of beta3
    above 0.9 and of |d| / sqrt(v) below 0.05."""
    mine = _synthetic(cells)
    weight, share = one(mine, name=BEFORE3), one(mine, name="relative d in the 100 rounds before")
    if weight is None or share is None:
        return NOT_RUN
    first = yes(min(weight.values.values()) > 0.9, f"beta3 {weight.mean:.3f}")
    second = yes(max(share.values.values()) < 0.05, f"|d|/sqrt(v) {share.mean:.4f}")
    return parts([("beta3", first), ("d", second)])


@claim("flash-14")
def disparity_jumps(cells: Cells) -> Verdict:
    """(a) Disparity in the 5 rounds after the drift at least 3 times its mean over the 50 before,
    for both optimisers; (b) beta3 lower than before by more than its standard error; (c) disparity
    in rounds 10 to 100 after it lower for FLASH. Partly: (a)."""
    mine = _synthetic(cells)
    jumps, text = [], []
    for method in ("FedYogi", "FLASH"):
        after, before = (
            one(mine, name=f"disparity in the {n}", method=method)
            for n in ("5 rounds after", "50 rounds before")
        )
        if after is None or before is None or not after.mean or not before.mean:
            return NOT_RUN
        jumps.append(after.mean >= 3.0 * before.mean)
        text.append(f"{method} {after.mean / before.mean:.1f} times")
    fall = between(mine, BEFORE3, AFTER3, method="FLASH")
    later = pair(mine.of(name="disparity in rounds 10 to 100 after"), "FedYogi", "FLASH")
    lower = (
        NOT_RUN if later is None else yes(later.mean > 0, f"FedYogi minus FLASH {later.mean:.2e}")
    )
    named = [
        ("a", yes(all(jumps), ", ".join(text))),
        ("b", all_above([fall] if fall else [])),
        ("c", lower),
    ]
    return parts(named, needed=("a",))


@claim("flash-15")
def larger_rate(cells: Cells) -> Verdict:
    """Mean effective rate over the 20 rounds after the drift larger for FLASH than for FedYogi by
    more than its standard error; FedYogi's falls over the last 200 rounds before. The share of
    guarded denominators is told."""
    mine = _synthetic(cells)
    more = pair(mine.of(name=RATE), "FLASH", "FedYogi")
    early, late = (
        "effective rate 200 to 180 rounds before",
        "effective rate in the 20 rounds before",
    )
    falls = between(mine, early, late, method="FedYogi")
    if more is None or falls is None:
        return NOT_RUN
    verdict = parts([("larger", all_above([more])), ("falls", all_above([falls]))])
    guarded = one(mine, name="guarded share after the drift")
    share = (
        f"; guarded share {guarded.mean:.4f}"
        if guarded is not None and guarded.mean is not None
        else ""
    )
    return Verdict(verdict.answer, verdict.numbers + share)


@claim("flash-16")
def fewer_epochs(cells: Cells) -> Verdict:
    """(a) Epochs after the drift: FedYogi minus FLASH at least 5% (10 to 13 is what is printed);
    (b) FLASH's mean epochs in the first 20 rounds and in the 20 after the drift above those of the
    100 before it; (c) epochs decrease in gamma over 0.01, 0.03, 0.1."""
    mine = _synthetic(cells)
    spent = mine.of(name="epochs after the drift")
    base, own = one(spent, method="FedYogi"), one(spent, method="FLASH")
    if base is None or own is None or not base.mean or own.mean is None:
        return NOT_RUN
    saved = 100.0 * (base.mean - own.mean) / base.mean
    steady = "mean epochs in the 100 rounds before the drift"
    rises = [
        between(mine, f"mean epochs in the {n}", steady, method="FLASH")
        for n in ("first 20 rounds", "20 rounds after the drift")
    ]
    sweep = cells.of(table="Early stopping", name="epochs after the drift")
    epochs = [
        r.mean for m in ("gamma 0.01", "early stopping", "gamma 0.1") if (r := one(sweep, method=m))
    ]
    known = [e for e in epochs if e is not None]
    falling = (
        yes(known == sorted(known, reverse=True), told_epochs(known))
        if len(known) == 3
        else NOT_RUN
    )
    found = [g for g in rises if g is not None]
    return parts(
        [("a", yes(saved >= 5.0, f"{saved:+.1f}%")), ("b", all_above(found)), ("c", falling)]
    )


def told_epochs(epochs: list[float]) -> str:
    return " > ".join(f"{e:.0f}" for e in epochs)
