"""Verdicts on what the theorems say of earlier tasks' losses and of the gradient of all tasks."""

from __future__ import annotations

from shoal.reproduce.claims import NOT_RUN, Cells, Verdict, claim
from shoal.reproduce.slope import log_slope
from shoal.reproduce.verdicts.ranking import one, parts, yes

ROUNDS = (5, 10, 20, 40, 80)
AFTER = (1, 5, 10, 20)


@claim("special-11")
def earlier_losses(cells: Cells) -> Verdict:
    """(a) At least 95% of participants' gradients in later tasks have a positive cosine with the
    earlier tasks' gradient at the task's start; (b) the earlier tasks' loss never rises (after 1,
    5, 10, 20 rounds) above what (a), the measured smoothness and the bound on the distance allow.
    The theorem's own constants cannot be measured. Whether the rise falls from round 10 to 20 is
    told. Linear model, digits."""
    mine = cells.of(table="Theory", setting="T 20")
    share, ratio = (one(mine, name=n) for n in ("aligned share", "rise over its bound"))
    if share is None or ratio is None:
        return NOT_RUN
    named = [
        ("a", yes((share.mean or 0.0) >= 95.0, f"{share.mean:.1f}% aligned")),
        ("b", yes(max(ratio.values.values()) <= 1.0,
                  f"largest ratio {max(ratio.values.values()):.3f}")),
    ]  # fmt: skip
    verdict = parts(named)
    rises = [(t, r.mean) for t in AFTER if (r := one(mine, name=f"rise after {t}")) is not None]
    text = ", ".join(f"{t}: {rise:+.3f}" for t, rise in rises)
    return Verdict(verdict.answer, f"{verdict.numbers}; rise of the loss after rounds {text}")


@claim("special-12")
def gradient_decays(cells: Cells) -> Verdict:
    """Smallest squared gradient norm of all tasks' summed losses during the last task: slope
    between -1.5 and -0.3 against T from 5 to 80 (both in logs), and falling from N = 2 to 4 and 8.
    Linear model, digits."""
    mine = cells.of(table="Theory", name="smallest gradient")
    by_rounds = [one(mine, setting=f"T {t}") for t in ROUNDS]
    by_clients = [one(mine, setting=s) for s in ("N 2", "T 20", "N 8")]
    rounds = [r.mean for r in by_rounds if r is not None and r.mean is not None]
    clients = [r.mean for r in by_clients if r is not None and r.mean is not None]
    if len(rounds) < len(ROUNDS) or len(clients) < 3:
        return NOT_RUN
    slope = log_slope(ROUNDS, rounds)
    falls = clients == sorted(clients, reverse=True)
    return parts(
        [
            ("T", yes(-1.5 <= slope <= -0.3, f"slope {slope:+.2f}")),
            ("N", yes(falls, ", ".join(f"{v:.2e}" for v in clients))),
        ]
    )
