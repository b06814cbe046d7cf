"""Differences between methods over runs that can be paired, with honest intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, sqrt
from typing import Any, NamedTuple

Page = dict[str, Any]
LEVEL = 0.95  # of all intervals of a comparison together
FIGURES = ("mean", "final")
MEMBERS = ("members", "each", "own")  # evaluate.on: members are scored on rows of their own


class Interval(NamedTuple):
    """Mean of paired differences; ``low`` and ``high`` are None for a single pair."""

    mean: float
    low: float | None
    high: float | None


def interval(differences: Sequence[float], comparisons: int = 1) -> Interval:
    """Student's t over seeds: ``mean +- t_{n-1} s / sqrt(n)``.

    Bonferroni: with ``comparisons`` intervals each has the confidence ``1 - 0.05 / comparisons``,
    so that all of them hold together in 95 of 100 experiments, whichever one is looked at.

    >>> [round(v, 4) for v in interval([0.02, 0.03, 0.04])]
    [0.03, 0.0052, 0.0548]
    >>> interval([0.02])
    Interval(mean=0.02, low=None, high=None)
    """
    n = len(differences)
    mean = sum(differences) / n
    if n < 2:
        return Interval(mean, None, None)
    from scipy.special import stdtrit

    spread = sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1))
    wide = float(stdtrit(n - 1, 1 - (1 - LEVEL) / (2 * max(1, comparisons)))) * spread / sqrt(n)
    return Interval(mean, mean - wide, mean + wide)


def paired(
    names: Sequence[str], sets: Sequence[Sequence[Page]]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Every two groups that have runs to pair, in the order of the ranking; and those that have
    none, with the reason.

    The intervals of one figure hold together; mean and final accuracy are two such families.
    """
    matched, apart = [], []
    for i in range(len(sets)):
        for j in range(i + 1, len(sets)):
            pairs, why = _matches(sets[i], sets[j])
            if pairs:
                matched.append((i, j, pairs))
            else:
                apart.append({"a": names[i], "b": names[j], "why": why})
    out = []
    for figure in FIGURES:
        for i, j, pairs in matched:
            gaps = [(a["seed"], gap(a, b, figure)) for a, b in pairs]
            known = [(seed, g) for seed, g in gaps if g is not None]
            if known:
                found = interval([g for _, g in known], len(matched))
                entry = {"a": names[i], "b": names[j], "of": figure, **found._asdict()}
                entry["seeds"] = [seed for seed, _ in known]
                out.append({**entry, "verdict": _verdict(found)})
    return out, apart


def _matches(a: Sequence[Page], b: Sequence[Page]) -> tuple[list[tuple[Page, Page]], str]:
    """The runs to pair; if there are none, why."""
    others = {page["seed"]: page for page in b}
    same = [(page, others[page["seed"]]) for page in a if page["seed"] in others]
    reasons = [why_apart(one, other) for one, other in same]
    pairs = [pair for pair, why in zip(same, reasons, strict=True) if not why]
    return pairs, reasons[0] if reasons else why_apart(a[0], b[0])


def why_apart(a: Page, b: Page) -> str:
    """Why the difference of two runs is no difference of their methods; empty where it may be.

    Paired are runs with one seed, in one world, on the same data, scored on the same rows in the
    same rounds. The world is what was drawn (``world.json``); of one that is not finished, the
    rounds that both have played count.
    """
    if a["scored_on"] != b["scored_on"]:
        return f"they are scored on {a['scored_on']} and on {b['scored_on']}"
    if a["seed"] != b["seed"]:
        return "they share no seed"
    if told := _unlike_scores(a, b):
        return told
    if told := _unlike_data(a, b):
        return f"their data differ ({told})"
    if told := _unlike_worlds(a, b):
        return f"their worlds differ ({told})"
    end = min(a["rounds"]["done"], b["rounds"]["done"])
    one, other = (_scored(page, end) for page in (a, b))
    if one != other:
        every = [(page["settings"].get("evaluate") or {}).get("every", 1) for page in (a, b)]
        told = "" if every[0] == every[1] else f" (evaluate.every {every[0]} and {every[1]})"
        return f"they are scored in different rounds{told}"
    if a["rounds"]["done"] != b["rounds"]["done"] and a["span"] != b["span"]:
        return "one has so many more rounds that its curve is kept in other steps"
    return ""


def _unlike_scores(a: Page, b: Page) -> str:
    """Whether other members are scored, or rows are held out of one run's training only."""
    rules = [page["settings"].get("evaluate") or {} for page in (a, b)]
    of_members = [r.get("on") in MEMBERS for r in rules]
    most = [r.get("members", 1000) for r in rules]
    if all(of_members) and most[0] != most[1]:
        return f"they score at most {most[0]} and {most[1]} members"
    apart = [
        # a config of version 0.1 holds nothing out
        r.get("held_out") or 0 if of or r.get("local") is not None else 0
        for r, of in zip(rules, of_members, strict=True)
    ]
    if apart[0] != apart[1]:
        return f"they train without {apart[0]:g} and {apart[1]:g} of each member's rows, held out"
    return ""


def _unlike_data(a: Page, b: Page) -> str:
    """Which digests of the data differ, of those that both have."""
    names = {"pool": "training rows", "test_pool": "test rows"}
    both = [n for n in names if n in a["pools"] and n in b["pools"]]
    told = [names[n] for n in both if a["pools"][n] != b["pools"][n]]
    if not both:  # runs of version 0.1, or in memory: their labels and what they say
        own, other = (page["settings"].get("data") for page in (a, b))
        told = ["data"] if own != other else []
    labels = [page["drawn"].get("labels") for page in (a, b)]
    return " and ".join(
        told or (["labels"] if None not in labels and labels[0] != labels[1] else [])
    )


def _unlike_worlds(a: Page, b: Page) -> str:
    """Which keys differ: of the config where it says so, else of what was drawn from it."""
    one, other = ({k: page["settings"].get(k) for k in ("problem", "world")} for page in (a, b))
    told = []
    for key in one:
        left, right = one[key], other[key]
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            # a config of version 0.1 leaves out what is at its default
            whole = all(page["settings"].get("format") == 2 for page in (a, b))
            keys = {*left, *right} if whole else left.keys() & right.keys()
            told += [f"{key}.{k}" for k in sorted(keys - {"lazy"}) if left.get(k) != right.get(k)]
        elif left is not None and right is not None and left != right:
            told.append(key)
    if not told:
        both = a["drawn"].keys() & b["drawn"].keys()
        told = [f"{k} of world.json" for k in sorted(both) if a["drawn"][k] != b["drawn"][k]]
    return ", ".join(told[:3])


def _scored(page: Page, end: int) -> set[int]:
    return {r for first, last, by in page["scored"] for r in range(first, min(last + 1, end), by)}


def gap(a: Page, b: Page, figure: str) -> float | None:
    """The difference of two runs that are paired, over the rounds both played; for ``final`` both
    must be finished, and their last rounds be as many."""
    if figure == "final":
        ends = [page["summary"]["final_accuracy"] for page in (a, b)]
        done = all(page["state"] == "finished" for page in (a, b))
        windows = {(page["settings"].get("evaluate") or {}).get("window", 10) for page in (a, b)}
        return ends[0] - ends[1] if done and None not in ends and len(windows) == 1 else None
    if a["rounds"]["done"] == b["rounds"]["done"]:
        whole = [page["summary"]["mean_accuracy"] for page in (a, b)]
        return None if None in whole else whole[0] - whole[1]
    end = min(page["rounds"]["done"] for page in (a, b))
    other = dict(zip(b["x"], b["series"]["accuracy"]["mean"], strict=True))
    own = zip(a["x"], a["series"]["accuracy"]["mean"], strict=True)
    steps = [(r, v) for r, v in own if r + a["span"] <= end]  # whole steps of both
    gaps = [v - other[r] for r, v in steps if v is not None and other.get(r) is not None]
    return sum(gaps) / len(gaps) if gaps else None


def _verdict(found: Interval) -> str:
    """A winner only where the interval lies on one side of 0.

    >>> _verdict(Interval(0.02, None, None)), _verdict(Interval(0.02, -0.01, 0.05))
    ('one seed: no interval', 'not separable')
    """
    if found.low is None:
        return "one seed: no interval"
    if found.low > 0:
        return "ahead"
    return "behind" if (found.high if found.high is not None else inf) < 0 else "not separable"
