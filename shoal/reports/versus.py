"""Several runs: ranks, paired differences, intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf, sqrt
from typing import Any, Literal, NamedTuple

from shoal.core.old_names import OF_MEMBERS
from shoal.metrics.figures import headline, mean_of_known
from shoal.reports.series import rounded
from shoal.runs.run import ELSEWHERE

# ---- pairs ---------------------------------------------------------------------------------------
# Differences between methods over runs that can be paired, with honest intervals.

Page = dict[str, Any]
LEVEL = 0.95  # of all intervals of a comparison together
FIGURES = ("mean", "final")


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
    scores = [page["summary"].get("score", "accuracy") for page in (a, b)]
    if scores[0] != scores[1]:
        return f"they are judged by {scores[0]} and by {scores[1]}"
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
    of_members = [r.get("rows") in OF_MEMBERS for r in rules]
    most = [r.get("members", 1000) for r in rules]
    if all(of_members) and most[0] != most[1]:
        return f"they score at most {most[0]} and {most[1]} members"
    apart = [
        # a config of version 0.1 holds nothing out
        r.get("held_out") or 0 if of or r.get("local_models_every") is not None else 0
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
        ends = [headline(page["summary"], "final") for page in (a, b)]
        done = all(page["state"] == "finished" for page in (a, b))
        windows = {(page["settings"].get("evaluate") or {}).get("window", 10) for page in (a, b)}
        if not done or len(windows) > 1 or ends[0] is None or ends[1] is None:
            return None
        return ends[0] - ends[1]
    if a["rounds"]["done"] == b["rounds"]["done"]:
        whole = [headline(page["summary"], "mean") for page in (a, b)]
        return None if whole[0] is None or whole[1] is None else whole[0] - whole[1]
    end = min(page["rounds"]["done"] for page in (a, b))
    of = a["summary"].get("score", "accuracy")
    other = dict(zip(b["x"], b["series"][of]["mean"], strict=True))
    own = zip(a["x"], a["series"][of]["mean"], strict=True)
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


# ---- versus --------------------------------------------------------------------------------------
# Several runs against each other: seeds together, ranked, and paired where seeds match.
#
# The format, made of pages (:mod:`shoal.reports.page_data`):
#
#     groups      [{name, method, runs, seeds, mean, final, best, metrics, fall, lowest,
#                 rounds_back, never, seconds, bytes, scored_on, x, band: {mean, low?, high?}}],
#                 the best mean accuracy (score) first
#     pairs       [{a, b, of, seeds, mean, low, high, verdict}]: differences a - b of groups that
#                 can be paired, a being ranked above b
#     apart       [{a, b, why}]: those that cannot (see :func:`shoal.reports.versus.why_apart`)
#     level       the confidence of all intervals of one figure together (0.95)
#     verdict     one sentence on who is ahead, or that nobody is
#     notes       what was left out, in sentences

Group = dict[str, Any]
# What may differ between runs that are repetitions of each other.
REPEATED = ("seed", "checkpoint", *ELSEWHERE)

MOST_TOLD = 4  # pairs that one sentence names


def versus(pages: Sequence[Page]) -> dict[str, Any]:
    """The comparison of at least two runs."""
    sets, repeated = _repetitions(pages)
    names = _names(sets)
    groups = [_group(name, runs) for name, runs in zip(names, sets, strict=True)]
    order = sorted(range(len(groups)), key=lambda i: -_or_low(groups[i]["mean"]))
    groups, ranked = [groups[i] for i in order], [sets[i] for i in order]
    pairs, apart = paired([g["name"] for g in groups], ranked)
    return {
        "format": 1,
        "groups": groups,
        "pairs": pairs,
        "apart": apart,
        "level": LEVEL,
        "verdict": _versus_verdict(groups, pairs),
        "notes": repeated + _notes(groups, apart),
    }


def _repetitions(pages: Sequence[Page]) -> tuple[list[list[Page]], list[str]]:
    """Runs whose configs differ in the seed only are one group, and every seed counts once in it;
    which runs repeat another one is told."""
    found: dict[str, dict[int, Page]] = {}
    notes = []
    for page in pages:
        group = found.setdefault(_but_seed(page), {})
        kept = group.setdefault(page["seed"], page)
        if kept is not page:
            if page["rounds"]["done"] > kept["rounds"]["done"]:  # the same, further on
                group[page["seed"]], page, kept = page, kept, page
            notes.append(_repeats(page, kept))
    return [list(group.values()) for group in found.values()], notes


def same_run(a: Page, b: Page) -> bool:
    """Whether both play one config with one seed, wherever they do."""
    return bool(a["seed"] == b["seed"]) and _but_seed(a) == _but_seed(b)


def _but_seed(page: Page) -> str:
    settings = {k: v for k, v in page["settings"].items() if k not in REPEATED}
    return json.dumps(settings, sort_keys=True, default=str)


def _repeats(page: Page, kept: Page) -> str:
    """The sentence on a run that another one stands for."""
    name, other, seed = page["name"], kept["name"], page["seed"]
    if why := why_apart(page, kept):
        return f"{name} has the config and the seed of {other}, but {why}; {other} alone counts."
    engines = page["engine"], kept["engine"]
    on = "" if engines[0] == engines[1] else f" on another engine ({engines[0]}, {engines[1]})"
    return f"{name} repeats seed {seed} of {other}{on}: the two count as one run."


def _names(sets: Sequence[Sequence[Page]]) -> list[str]:
    """The method; with the settings that differ where two groups have the same one."""
    names = [runs[0]["method"] for runs in sets]
    settings = [_flat(runs[0]["settings"]) for runs in sets]
    out = []
    for name, own in zip(names, settings, strict=True):
        rivals = [s for n, s in zip(names, settings, strict=True) if n == name]
        keys = sorted({k for s in rivals for k in {*s, *own} if s.get(k) != own.get(k)})
        kept = [k for k in keys if k.split(".")[0] not in REPEATED]
        told = [f"{k.removeprefix('method.')} {own.get(k, 'unset')}" for k in kept[:3]]
        out.append(f"{name} ({', '.join(told)})" if told else name)
    return out


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        inner = [_flat(v, f"{prefix}.{k}" if prefix else str(k)) for k, v in value.items()]
        return {k: v for found in inner for k, v in found.items()}
    if isinstance(value, list) and any(isinstance(v, Mapping) for v in value):
        return {k: v for item in value for k, v in _flat(item, prefix).items()}
    return {prefix: value}


def _group(name: str, runs: Sequence[Page]) -> Group:
    summaries = [r["summary"] for r in runs]
    totals = [s["totals"] for s in summaries]

    def of(key: str) -> float | None:
        return rounded(mean_of_known([s[key] for s in summaries]), 6)

    def judged(which: Literal["mean", "final", "best"]) -> float | None:
        return rounded(mean_of_known([headline(s, which) for s in summaries]), 6)

    return {
        "name": name,
        "method": runs[0]["method"],
        "runs": [r["name"] for r in runs],
        "seeds": [r["seed"] for r in runs],
        "mean": judged("mean"),
        "final": judged("final"),
        "best": judged("best"),
        "metrics": _metrics(summaries),
        "loss": of("final_loss"),
        "fall": of("mean_fall"),
        "lowest": of("mean_lowest"),
        "rounds_back": of("mean_rounds_to_recovery"),
        "never": rounded(mean_of_known([float(s["unrecovered"]) for s in summaries])),
        "seconds": of("seconds"),
        "bytes": mean_of_known([float(t["bytes_up"] + t["bytes_down"]) for t in totals]),
        "scored_on": runs[0]["scored_on"],
        "unfinished": sum(r["state"] != "finished" for r in runs),
        **_band(runs),
    }


def _metrics(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Final figures of further metrics, means over seeds."""
    names = {name: None for s in summaries for name in s.get("metrics") or {}}
    found = {n: [(s.get("metrics") or {}).get(n) for s in summaries] for n in names}
    return {name: rounded(mean_of_known(values), 6) for name, values in found.items()}


def _band(runs: Sequence[Page]) -> dict[str, Any]:
    """Mean over seeds in every step, with the lowest and the highest seed."""
    known = any(headline(r["summary"], "final") is not None for r in runs)
    key = runs[0]["summary"].get("score", "accuracy") if known else "loss"
    curves = [dict(zip(r["x"], r["series"][key]["mean"], strict=True)) for r in runs]
    x = sorted({round for curve in curves for round in curve})
    columns = [[c[r] for c in curves if c.get(r) is not None] for r in x]
    band: dict[str, Any] = {"mean": [rounded(mean_of_known(c)) for c in columns]}
    if len(runs) > 1:
        band["low"] = [min(c) if c else None for c in columns]
        band["high"] = [max(c) if c else None for c in columns]
    return {"of": key, "x": x, "span": runs[0]["span"], "band": band}


def _versus_verdict(groups: Sequence[Group], pairs: Sequence[Mapping[str, Any]]) -> str:
    """Nobody is ahead unless every interval says so."""
    if len(groups) < 2:
        return "All runs are repetitions of one config."
    if groups[0]["mean"] is None:
        return "Accuracy was not measured, so none is ahead."
    of = groups[0]["of"]
    first = groups[0]["name"]
    mine = [p for p in pairs if p["a"] == first and p["of"] == "mean"]
    missing = len(groups) - 1 - sum(p["low"] is not None for p in mine)
    if missing:
        return (
            f"Not separable: {first} has the highest mean {of} here, but "
            f"{_some(missing, len(groups) - 1)} cannot be paired with it over two seeds or more."
        )
    close = [p["b"] for p in mine if p["low"] <= 0.0]
    if close:
        return f"Not separable: {first} is not clearly ahead of {_listed(close)}."
    return f"{first} has the highest mean {of}, and every interval supports it."


def _some(missing: int, others: int) -> str:
    if others == 1:
        return "the other"
    return f"{missing} of the {others} others"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _notes(groups: Sequence[Group], apart: Sequence[Mapping[str, str]]) -> list[str]:
    notes = []
    scored = sorted({g["scored_on"] for g in groups})
    if len(scored) > 1:
        notes.append(
            f"Accuracy is not the same thing in all runs: they are scored on {' and '.join(scored)}"
            "."
        )
    reasons: dict[str, list[str]] = {}
    for pair in apart:
        reasons.setdefault(pair["why"], []).append(f"{pair['a']} and {pair['b']}")
    for why, who in reasons.items():
        more = f"; and {len(who) - MOST_TOLD} pairs more" if len(who) > MOST_TOLD else ""
        notes.append(f"Not paired, since {why}: {'; '.join(who[:MOST_TOLD])}{more}.")
    cut = sum(g["unfinished"] for g in groups)
    if cut:
        notes.append(
            f"{cut} of the runs are not finished; pairs are compared on rounds that both have."
        )
    return notes


def _or_low(value: float | None) -> float:
    return float("-inf") if value is None else value
