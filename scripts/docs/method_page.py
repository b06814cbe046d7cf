"""The page of one method, and the page that lists them, from docstrings and measured runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import curve
import docstring

from shoal import catalog
from shoal.methods.method import Method
from shoal.methods.slots import SLOTS

CURVES = Path(__file__).parents[2] / "docs" / "methods" / "curves.json"
FAMILIES = {
    "five_papers": "The five papers",
    "averaging": "Averaging, server optimisers and robust aggregation",
    "client_drift": "Corrected gradients and momentum",
    "personal": "Personal and several models",
    "continual": "Continual learning",
    "plug_ins": "Plug-ins: detectors, measurements, compressed and private changes",
}
PAPERS = (
    'Paper 1: "Federated Learning with Dynamic Client Arrival and Departure". '
    'Paper 2: "Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed '
    'Initialization". Paper 3: "Flash: Concept Drift Adaptation in Federated Learning". Paper 4: '
    '"Server-Proximal Aggregation for Federated Domain-Incremental Learning under Partial '
    'Participation". Paper 5: "FedAgg: Adaptive Federated Learning with Aggregated Gradients".'
)
Entry = Callable[..., Method]


def read_curves() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CURVES.read_text(encoding="utf-8"))
    return found


def families() -> dict[str, list[str]]:
    """Methods by the file of the catalog they stand in; a new file comes last, by its name."""
    found: dict[str, list[str]] = {title: [] for title in FAMILIES.values()}
    for name, entry in catalog.METHODS.items():
        file = entry.__module__.rsplit(".", 1)[1]
        found.setdefault(FAMILIES.get(file, file.capitalize()), []).append(name)
    return {title: names for title, names in found.items() if names}


def first_line(entry: Entry) -> str:
    return (inspect.getdoc(entry) or "").split("\n")[0].rstrip(".")


def page(name: str, curves: dict[str, Any]) -> str:
    """Markdown of one method."""
    entry = catalog.METHODS[name]
    method = entry()
    lead, *more = (inspect.getdoc(entry) or "").split("\n\n")
    parts = [
        f"# {name}\n\n{docstring.markdown(lead)}",
        *(docstring.markdown(p) for p in more),
        _how(name, entry),
        *(_part(part) for part in method.parts),
        "" if method.parts else "No parts: a round without any is plain averaging.",
        _curve(name, curves),
        _cost(name, curves),
        _facts(method),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _how(name: str, entry: Entry) -> str:
    settings = inspect.signature(entry).parameters.values()
    head = f"```python\nfrom shoal import catalog\n\nprint(catalog.{name}())\n```"
    if not list(settings):
        return head + f"\n\nIn a config: `method: {name}`. It has no settings."
    rows = [f"| `{s.name}` | `{s.default!r}` |" for s in settings]
    table = "\n".join(["| setting | default |", "|---|---|", *rows])
    return (
        f"{head}\n\nIn a config: `method: {name}`, or `method: {{{name}: {{...}}}}` with\n\n{table}"
    )


def _part(part: Any) -> str:
    found = docstring.told(type(part))
    title = f"## `{type(part).__name__}`"
    shown = docstring.formulas(found.text)
    code = "```text\n" + "\n".join(shown) + "\n```" if shown else ""
    lines = [title, code, *(docstring.markdown(p) for p in found.text)]
    if found.parameters:
        lines.append("**Parameters.** " + docstring.markdown(found.parameters))
    if found.deviations:
        words = docstring.markdown(found.deviations)
        lines.append("**Deviations from the paper.** " + words[:1].upper() + words[1:])
    lines.append("Source: `" + type(part).__module__.replace(".", "/") + ".py`")
    return "\n\n".join(line for line in lines if line)


def _curve(name: str, curves: dict[str, Any]) -> str:
    own = curves.get(name)
    if own is None:
        return f"## Curve\n\nNot drawn yet: `python scripts/docs/curves.py {name}`."
    floor = None if name == "fedavg" else curves.get("fedavg")
    settings = own["settings"].get(name) or {}
    told = ", ".join(f"`{key}: {value}`" for key, value in settings.items())
    scored = " Scored on the members' own held-out rows." if own["scored_on"] == "members" else ""
    behind = " Grey and dashed: FedAvg in the same world." if floor else ""
    return (
        f"## Curve\n\n{curve.drawn(name, own, floor)}\n\n"
        f"Accuracy on what members hold now: {_percent(own['final'])} at the end, "
        f"{_percent(own['mean'])} on average.{behind}{scored}"
        + (f" Settings that differ from the defaults: {told}." if told else "")
        + " One seed in [one small world](index.md#the-world-of-the-curves): a picture of "
        "behaviour, not a ranking."
    )


def _cost(name: str, curves: dict[str, Any]) -> str:
    own = curves.get(name)
    if own is None:
        return ""
    c = own["cost"]
    rows = [
        ("sent down, vectors per client and round", c["down"]),
        ("sent up, vectors per client and round", c["up"]),
        ("gradients per local step", c["gradients"]),
        ("kept by a client between rounds, vectors", c["client"]),
        ("kept by the server's parts, vectors", c["server"]),
        ("communication beside FedAvg", c["communication_ratio"]),
        ("storage of a client beside FedAvg", c["storage_ratio"]),
    ]
    table = "\n".join(f"| {what} | {_number(value)} |" for what, value in rows)
    return (
        "## Cost\n\nMeasured in the run above; a vector is one model.\n\n"
        f"| what | measured |\n|---|---|\n{table}"
    )


def _facts(method: Method) -> str:
    slots = ", ".join(f"`{slot}`" for slot in SLOTS if method.fills(slot)) or "none"
    able = f"no: {method.loop_only_reason}" if method.loop_only_reason else "yes"
    base = "stands under plug-ins" if method.base else "a plug-in: the base method decides weights"
    return (
        "## Facts\n\n| fact | |\n|---|---|\n"
        f"| weights of clients | {method.weights} |\n| in a composition | {base} |\n"
        f"| slots | {slots} |\n| runs on `stacked` | {able} |"
    )


def index(curves: dict[str, Any]) -> str:
    """The list of methods."""
    lines = [
        "# Methods\n\nEvery entry of the catalog at its paper's defaults. Names compose: a list in "
        "a config, `|` in Python. These pages are made from the docstrings of the code and from "
        "measured runs."
    ]
    for title, names in families().items():
        rows = [f"| [`{n}`]({n}.md) | {first_line(catalog.METHODS[n])} |" for n in names]
        papers = f"{PAPERS}\n\n" if title == FAMILIES["five_papers"] else ""
        lines.append(f"## {title}\n\n{papers}| name | what it is |\n|---|---|\n" + "\n".join(rows))
    lines.append(
        "## The world of the curves\n\nDigits, 12 members of which 5 train a round, an MLP with 64 "
        "hidden units, 2 local epochs of 16 at rate 0.1; two groups take turns every 20 rounds, "
        "images turn into their negatives at round 30, and at round 50 half of the members swap "
        "two pairs of labels. `python scripts/docs/curves.py` runs it. Questions that a method "
        "puts to clients before training count as gradients here; bytes are those of training."
    )
    return "\n\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
