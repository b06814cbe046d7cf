"""Verdicts on beta, divergence and generalisation (the paper's central claim)."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.counting import gap
from shoal.reproduce.results import Result
from shoal.reproduce.verdicts.ranking import parts, spearman, yes

STABLE = ("0", "0.02", "0.05", "0.1")
COLLAPSE = 5.0  # points below beta 0 from which a beta counts as diverged


def swept(cells: Cells, name: str, variant: str = "paper") -> dict[float, Result]:
    """Every beta of Table 3 and its figure."""
    found = cells.of(table="Table 3", name=name, variant=variant)
    return {
        float(r.method.split("=")[1].rstrip(")")): r
        for r in sorted(found, key=lambda r: float(r.method.split("=")[1].rstrip(")")))
        if r.mean is not None
    }


def _curve(found: dict[float, Result], digits: int = 2) -> str:
    return ", ".join(f"{b:g}: {r.mean:.{digits}f}" for b, r in found.items())


def _stable(cells: Cells) -> list[float]:
    accuracy = swept(cells, "test_accuracy")
    base = accuracy[0.0].mean or 0.0
    return [b for b, r in accuracy.items() if (r.mean or 0.0) > base - COLLAPSE]


@claim("fedinit-09")
def optimum_near_a_tenth(cells: Cells) -> Verdict:
    """(a) Accuracy does not fall by more than its standard error from beta -0.2 up to 0.1; (b) beta
    0.1 above 0 and (c) negative beta below 0, by more than the standard error; (d) 5 points or more
    lost, or divergence, at 0.15 or 0.2. Partly: three. The simulator's reading is told."""
    found = swept(cells, "test_accuracy")
    if len(found) < 7:
        return NOT_RUN
    up = [b for b in found if b <= 0.1]
    steps = [gap(found[b], found[a]) for a, b in zip(up, up[1:], strict=False)]
    rising = all(g is not None and g.mean >= -g.error for g in steps)
    best = gap(found[0.1], found[0.0])
    less = [gap(found[0.0], found[b]) for b in found if b < 0]
    lost = [b for b in (0.15, 0.2) if b in found and _collapsed(found[0.0], found[b])]
    named = [
        ("a", yes(rising, _curve(found))),
        (
            "b",
            yes(best is not None and best.mean > best.error, f"{best.mean:+.2f}" if best else ""),
        ),
        ("c", yes(all(g is not None and g.mean > g.error for g in less), "beta 0 over negative")),
        ("d", yes(bool(lost), f"collapsed: {lost}")),
    ]
    verdict = parts(named, partly=3)
    there = swept(cells, "test_accuracy", "authors")
    extra = f"; simulator's reading: {_curve(there)}" if there else ""
    return Verdict(verdict.answer, verdict.numbers + extra)


def _collapsed(base: Result, other: Result) -> bool:
    return (base.mean or 0.0) - (other.mean or 0.0) >= COLLAPSE


@claim("fedinit-10")
def divergence_goes_with_accuracy(cells: Cells) -> Verdict:
    """Over the stable betas the final divergence is smallest where accuracy is largest, and their
    rank correlation is at most -0.7."""
    accuracy, spread = swept(cells, "test_accuracy"), swept(cells, "divergence")
    if len(accuracy) < 7 or len(spread) < 7:
        return NOT_RUN
    betas = [b for b in _stable(cells) if b in spread]
    most = max(betas, key=lambda b: accuracy[b].mean or 0.0)
    least = min(betas, key=lambda b: spread[b].mean or 0.0)
    rho = spearman([accuracy[b].mean or 0.0 for b in betas], [spread[b].mean or 0.0 for b in betas])
    same = yes(
        most == least, f"best at {most:g}, least divergence at {least:g} ({_curve(spread, 3)})"
    )
    return parts([("same beta", same), ("correlation", yes(rho <= -0.7, f"{rho:+.2f}"))])


@claim("fedinit-12")
def acts_on_generalisation(cells: Cells) -> Verdict:
    """Over beta 0, 0.02, 0.05, 0.1: the relative spread of the final training loss is smaller than
    that of the gap between test and training loss, and the gap moves with divergence (rank
    correlation above 0)."""
    figures = {
        n: swept(cells, n) for n in ("training loss at the end", "generalisation gap", "divergence")
    }
    betas = [float(b) for b in STABLE]
    if any(b not in found for found in figures.values() for b in betas):
        return NOT_RUN
    values = {n: [found[b].mean or 0.0 for b in betas] for n, found in figures.items()}
    train, apart, spread = values.values()
    wide = [(max(v) - min(v)) / abs(sum(v) / len(v)) for v in (train, apart)]
    rho = spearman(apart, spread)
    text = f"training loss varies by {wide[0]:.1%}, the gap by {wide[1]:.1%}"
    return parts([("spread", yes(wide[0] < wide[1], text)), ("sign", yes(rho > 0, f"{rho:+.2f}"))])


@claim("fedinit-13")
def divergence_shrinks(cells: Cells) -> Verdict:
    """(a) Slope of log divergence against log round over the second half below -0.5 at beta 0 and
    0.1; (b) divergence at the end smaller with beta 0.1 than with 0, by more than the standard
    error (FedAvg; SCAFFOLD only in the small CIFAR-10 runs, told there)."""
    slopes, spread = swept(cells, "slope of the divergence"), swept(cells, "divergence")
    if not {0.0, 0.1} <= set(slopes) or not {0.0, 0.1} <= set(spread):
        return NOT_RUN
    less = gap(spread[0.0], spread[0.1])
    both = [slopes[b].mean or 0.0 for b in (0.0, 0.1)]
    falls = yes(max(both) < -0.5, ", ".join(f"{s:.2f}" for s in both))
    text = f"{spread[0.0].mean:.3f} to {spread[0.1].mean:.3f}"
    return parts([("a", falls), ("b", yes(less is not None and less.mean > less.error, text))])


def _interval(cells: Cells, name: str, letter: str) -> list[tuple[float, Result]]:
    mine = cells.of(table="Local interval", name=name)
    found = [(float(r.method[2:]), r) for r in mine if r.method.startswith(f"{letter}=")]
    return sorted((p for p in found if p[1].mean is not None), key=lambda p: p[0])


@claim("fedinit-11")
def interior_interval(cells: Cells) -> Verdict:
    """Accuracy against K = 1, 2, 5, 10, 20 epochs has an interior maximum, both ends lower by more
    than the standard error."""
    points = _interval(cells, "final accuracy", "K")
    if len(points) < 5:
        return NOT_RUN
    best = max(points, key=lambda p: p[1].mean or 0.0)
    ends = [gap(best[1], p[1]) for p in (points[0], points[-1])]
    inside = points[0][0] < best[0] < points[-1][0]
    good = inside and all(g is not None and g.mean > g.error for g in ends)
    return yes(good, ", ".join(f"{k:g}: {r.mean:.2f}" for k, r in points))


@claim("fedinit-14")
def divergence_grows(cells: Cells) -> Verdict:
    """Rank correlation of the final divergence with K (1, 2, 5, 10) and with the number of
    participants N at least 0.8 each."""
    named = []
    for letter in ("K", "N"):
        points = [p for p in _interval(cells, "divergence", letter) if p[0] != 20 or letter == "N"]
        if len(points) < 4:
            return NOT_RUN
        rho = spearman([p[0] for p in points], [p[1].mean or 0.0 for p in points])
        named.append((letter, yes(rho >= 0.8, f"{rho:+.2f}")))
    return parts(named)
