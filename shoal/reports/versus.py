"""Several runs against each other: seeds together, ranked, and paired where seeds match.

The format, made of pages (:mod:`shoal.reports.page_data`):

    groups      [{name, method, runs, seeds, mean, final, best, fall, lowest, rounds_back, never,
                seconds, bytes, scored_on, x, band: {mean, low?, high?}}], the best mean
                accuracy first
    pairs       [{a, b, of, seeds, mean, low, high, verdict}]: differences a - b of groups that
                can be paired, a being ranked above b
    apart       [{a, b, why}]: those that cannot (see :func:`shoal.reports.pairs.why_apart`)
    level       the confidence of all intervals of one figure together (0.95)
    verdict     one sentence on who is ahead, or that nobody is
    notes       what was left out, in sentences
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.reports.pairs import LEVEL, paired, why_apart
from shoal.reports.thin import rounded
from shoal.runner import ELSEWHERE

Page = dict[str, Any]
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
        "verdict": _verdict(groups, pairs),
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
        return rounded(_mean([s[key] for s in summaries]), 6)

    return {
        "name": name,
        "method": runs[0]["method"],
        "runs": [r["name"] for r in runs],
        "seeds": [r["seed"] for r in runs],
        "mean": of("mean_accuracy"),
        "final": of("final_accuracy"),
        "best": of("best_accuracy"),
        "loss": of("final_loss"),
        "fall": of("mean_fall"),
        "lowest": of("mean_lowest"),
        "rounds_back": of("mean_rounds_to_recovery"),
        "never": rounded(_mean([float(s["unrecovered"]) for s in summaries])),
        "seconds": of("seconds"),
        "bytes": _mean([float(t["bytes_up"] + t["bytes_down"]) for t in totals]),
        "scored_on": runs[0]["scored_on"],
        "unfinished": sum(r["state"] != "finished" for r in runs),
        **_band(runs),
    }


def _band(runs: Sequence[Page]) -> dict[str, Any]:
    """Mean over seeds in every step, with the lowest and the highest seed."""
    key = "accuracy" if any(r["summary"]["final_accuracy"] is not None for r in runs) else "loss"
    curves = [dict(zip(r["x"], r["series"][key]["mean"], strict=True)) for r in runs]
    x = sorted({round for curve in curves for round in curve})
    columns = [[c[r] for c in curves if c.get(r) is not None] for r in x]
    band: dict[str, Any] = {"mean": [rounded(_mean(c)) for c in columns]}
    if len(runs) > 1:
        band["low"] = [min(c) if c else None for c in columns]
        band["high"] = [max(c) if c else None for c in columns]
    return {"of": key, "x": x, "span": runs[0]["span"], "band": band}


def _verdict(groups: Sequence[Group], pairs: Sequence[Mapping[str, Any]]) -> str:
    """Nobody is ahead unless every interval says so."""
    if len(groups) < 2:
        return "All runs are repetitions of one config."
    if groups[0]["mean"] is None:
        return "Accuracy was not measured, so nobody is ahead."
    first = groups[0]["name"]
    mine = [p for p in pairs if p["a"] == first and p["of"] == "mean"]
    missing = len(groups) - 1 - sum(p["low"] is not None for p in mine)
    if missing:
        return (
            f"Not separable: {first} has the highest mean accuracy here, but "
            f"{_some(missing, len(groups) - 1)} cannot be paired with it over two seeds or more."
        )
    close = [p["b"] for p in mine if p["low"] <= 0.0]
    if close:
        return f"Not separable: {first} is not clearly ahead of {_listed(close)}."
    return f"{first} has the highest mean accuracy, and every interval supports it."


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
            f"{cut} of the runs are not finished; pairs are compared on rounds both played."
        )
    return notes


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _or_low(value: float | None) -> float:
    return float("-inf") if value is None else value
