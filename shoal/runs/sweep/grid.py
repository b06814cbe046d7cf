"""A sweep's file to its runs, and the table at the end."""

from __future__ import annotations

import copy
import itertools
import json
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from shoal.config.read import put, read
from shoal.config.schema import Config, from_mapping
from shoal.core.errors import UserError, suggestion
from shoal.core.old_names import TwiceError, renamed, todays_path
from shoal.metrics.figures import headline
from shoal.runs.directory import RunDir
from shoal.runs.sweep.pool import Outcome

# ---- grid ----------------------------------------------------------------------------------------
# From a sweep's file to its runs: a base config and a grid of changes, or a list of runs.
#
# base: world.yaml                # a file beside this one, or a config written out
# grid:                           # every combination; any dotted key of a config
#   method: [fedavg, {fedinit: {beta: 0.1}}]
#   seed: [0, 1, 2]
#   local.lr: {slow: 0.01, fast: 0.1}     # labels, where a value makes no good name
# runs:                           # and, or instead, runs of their own
#   special: {method: special, local.lr: 0.05}

KEYS = ("base", "grid", "runs")


def read_sweep(path: Path) -> dict[str, Config]:
    """Every run of a sweep's file by name, checked; a mistake is one sentence."""
    values, _ = read(path)
    for key in values:
        if key not in KEYS:
            raise UserError(f"{path.name}: unknown key {key!r}; {suggestion(key, KEYS)}")
    base = _base(path, values.get("base", {}))
    changes = _grid(path, values["grid"]) if "grid" in values else {}
    for name, change in _mapping(path, "runs", values.get("runs") or {}).items():
        if name in changes:
            raise UserError(f"{path.name}: runs.{name} is the name of a run of the grid, too")
        changes[str(name)] = _mapping(path, f"runs.{name}", change or {})
    if not changes:
        raise UserError(f"{path.name}: a sweep needs a grid or runs")
    return {name: _config(path, name, base, change) for name, change in changes.items()}


def _base(path: Path, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        values, _ = read(path.parent / given)
        return values
    return _mapping(path, "base", given)


def _grid(path: Path, given: Any) -> dict[str, dict[str, Any]]:
    """The changes of every combination, by the name of its run."""
    axes = []
    for key, choices in _mapping(path, "grid", given).items():
        labelled = choices if isinstance(choices, Mapping) else None
        if not isinstance(choices, list | Mapping) or not choices:
            raise UserError(f"{path.name}: grid.{key} must be a list, or a mapping of labels")
        pairs = labelled.items() if labelled else ((_label(key, c), c) for c in choices)
        axes.append([(_safe(str(label)), key, choice) for label, choice in pairs])
    found: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*axes):
        name = "_".join(label for label, _, _ in combination)
        if name in found:
            raise UserError(
                f"{path.name}: two runs of the grid would be called {name!r}; "
                "write labels: a mapping instead of a list"
            )
        found[name] = {key: choice for _, key, choice in combination}
    return found


def _label(key: str, choice: Any) -> str:
    """What a value is called in a name: methods and worlds by their names, the rest by key.

    >>> _label("method", ["scaffold", {"fedinit": {"beta": 1}}]), _label("local.lr", 0.1)
    ('scaffold+fedinit-beta1', 'lr0.1')
    """
    short = key.split(".")[-1]
    if isinstance(choice, list):
        return "+".join(_label(key, c) for c in choice)
    if isinstance(choice, Mapping):
        if "name" in choice:
            return str(choice["name"])
        parts = [f"{k}-{_settings(v)}" if v else str(k) for k, v in choice.items()]
        return "+".join(parts)
    return str(choice) if isinstance(choice, str) else f"{short}{choice}"


def _settings(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{k}{v}" for k, v in value.items())
    return str(value)


def _safe(label: str) -> str:
    """A label that can be part of a directory's name."""
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", label).strip("-.") or "x"


def _config(path: Path, name: str, base: Mapping[str, Any], change: Mapping[str, Any]) -> Config:
    try:
        values = copy.deepcopy(renamed(base))
        for key, value in change.items():
            put(
                values,
                list(todays_path(str(key).split("."))),
                copy.deepcopy(value),
                f"{key}={value}",
            )
            values = renamed(values)
    except TwiceError as error:
        raise UserError(f"{path.name}, run {name}: {error}") from None
    return from_mapping(values, lambda key: f"{path.name}, run {name}: ")


def _mapping(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{path.name}: {key} must be a mapping")
    return dict(value)


# ---- table ---------------------------------------------------------------------------------------
# The table at the end of a sweep: one line a set of settings, figures over its seeds.

COLUMNS = ("seeds", "final %", "mean %", "seconds")


def table(root: Path, configs: Mapping[str, Config], outcomes: Mapping[str, Outcome]) -> Table:
    """Runs that differ in the seed only share a line: mean and spread over the seeds."""
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("run", overflow="fold")
    for column in COLUMNS:
        found.add_column(column, justify="right")
    for names in _alike(configs):
        summaries = [_summary(root / name) for name in names if outcomes[name].fine]
        found.add_row(_common(names), *_figures(summaries, len(names)))
    return found


def _alike(configs: Mapping[str, Config]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name, config in configs.items():
        values = config.complete()
        del values["seed"]
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(name)
    return list(groups.values())


def _common(names: list[str]) -> str:
    """What the names of a line have in common.

    >>> _common(["fedavg_seed0", "fedavg_seed1"]), _common(["a"])
    ('fedavg', 'a')
    """
    if len(names) == 1:
        return names[0]
    split = [name.split("_") for name in names]
    shared = [words[0] for words in zip(*split, strict=False) if len(set(words)) == 1]
    return "_".join(shared) or names[0]


def _summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RunDir(directory).summary.read_text(encoding="utf-8"))
    return found


def _figures(summaries: list[dict[str, Any]], wanted: int) -> list[str]:
    count = str(len(summaries)) if len(summaries) == wanted else f"{len(summaries)} of {wanted}"
    shown = [count]
    for which in ("final", "mean"):
        values = [headline(s, which) for s in summaries]
        shown.append(_spread([100 * value for value in values if value is not None]))
    # the longest: seeds that stepped together waited for each other
    return [*shown, f"{max(s['seconds'] for s in summaries):.1f}" if summaries else "-"]


def _spread(values: list[float]) -> str:
    """
    >>> _spread([90.0, 92.0]), _spread([90.0]), _spread([])
    ('91.00 ± 1.41', '90.00', '-')
    """
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"
