"""What happened, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import shown
from shoal.metrics.figures import headline

# ---- names ---------------------------------------------------------------------------------------
# Words for methods and shifts.

_WORDS = {
    "members": "members change",
    "concept": "concept drifts",
    "domain": "new domain",
    "classes": "new classes",
    "noticed": "shift noticed",
}


def method_name(spec: Any) -> str:
    """A method as the config names it.

    >>> method_name(["scaffold", {"fedinit": {"beta": 1}}])
    'scaffold + fedinit'
    """
    if isinstance(spec, str):
        return shown(spec)
    return " + ".join(method_name(item) for item in spec)


def shift_name(shift: Mapping[str, Any]) -> str:
    """What changed, in words.

    >>> shift_name({"kinds": ["members"], "announced": True})
    'members change'
    """
    name = ", ".join(_WORDS.get(kind, shown(kind)) for kind in shift["kinds"])
    return name if shift["announced"] else f"{name} (hidden)"


# ---- verdicts ------------------------------------------------------------------------------------
# What happened, in sentences that the figures support.

Verdict = dict[str, str]  # tone: good, bad or plain; text


def verdicts(figures: dict[str, Any], done: int, planned: int | None) -> list[Verdict]:
    """The most telling sentence first."""
    found: list[Verdict] = []
    unfinished = planned is not None and done < planned
    if unfinished:
        found.append(_verdict("bad", f"Not finished: {done:,} of {planned:,} rounds are done."))
    found += _level(figures, "Stands" if unfinished else "Ends")
    found += [*_shifts(figures["shifts"]), *_tasks(figures), *_spread(figures)]
    totals = figures["totals"]
    if totals["rejected"]:
        found.append(_verdict("bad", f"The guard rejected {_count(totals['rejected'], 'upload')}."))
    if totals["short_rounds"]:
        text = f"In {_count(totals['short_rounds'], 'round')} fewer members were there than asked."
        found.append(_verdict("plain", text))
    return found


def _level(figures: dict[str, Any], verb: str) -> list[Verdict]:
    final, mean, best = (headline(figures, w) for w in ("final", "mean", "best"))
    if final is None or mean is None or best is None:
        loss = figures["final_loss"]
        return [] if loss is None else [_verdict("plain", f"The last loss is {loss:.4g}.")]
    rounds = figures["to_best"]["rounds"]
    of = f"{figures['score']} of " if "score" in figures else ""
    text = f"{verb} at {of}{percent(final)}, mean {percent(mean)}"
    text += f"; best {percent(best)} in round {rounds - 1}." if rounds else "."
    fell = best - final > 0.05
    return [_verdict("bad" if fell else "plain", text)]


def _shifts(shifts: Sequence[dict[str, Any]]) -> list[Verdict]:
    told = [s for s in shifts if s["level"] is not None and s["lowest"] is not None]
    if not told:
        return []
    back = [s for s in told if s["rounds"] is not None]
    text = f"Came back after {len(back):,} of {_count(len(told), 'shift')}"
    slow = max(back, key=lambda s: s["rounds"], default=None)
    if slow and slow["rounds"]:
        text += f", at the slowest in {_count(slow['rounds'], 'round')} (round {slow['round']})"
    out = [_verdict("good" if len(back) == len(told) else "bad", text + ".")]
    lost = [str(s["round"]) for s in told if s["rounds"] is None]
    if lost:
        shown = ", ".join(lost[:6]) + (f" and {len(lost) - 6} more" if len(lost) > 6 else "")
        what = "the shift at round" if len(lost) == 1 else "the shifts at rounds"
        out.append(_verdict("bad", f"Never back after {what} {shown}."))
    deep = max((s for s in told if s["fall"] is not None), key=lambda s: s["fall"], default=None)
    if deep and deep["fall"] > 0:
        what = (
            f"The deepest fall was {100 * deep['fall']:.1f} points, to {percent(deep['lowest'])}, "
            f"at round {deep['round']}."
        )
        out.append(_verdict("plain", what))
    return out


def _tasks(figures: dict[str, Any]) -> list[Verdict]:
    tasks = figures.get("continual")
    if not tasks or tasks["bwt"] is None:
        return []
    worst, mean = tasks["worst_drop"], -tasks["bwt"]
    if worst <= 0:
        return [_verdict("good", "No earlier task was forgotten.")]
    text = f"Earlier tasks lost {100 * mean:.1f} points on average, {100 * worst:.1f} at most."
    return [_verdict("bad" if worst > 0.05 else "plain", text)]


def _spread(figures: dict[str, Any]) -> list[Verdict]:
    own = figures.get("personalised")
    if not own:
        return []
    text = (
        f"Among the {_count(own['members'], 'member')} at the end the worst tenth has "
        f"{percent(own['worst_decile'])}, the mean {percent(own['mean'])}."
    )
    return [_verdict("bad" if own["mean"] - own["worst_decile"] > 0.2 else "plain", text)]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _verdict(tone: str, text: str) -> Verdict:
    return {"tone": tone, "text": text}
