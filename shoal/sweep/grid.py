"""From a sweep's file to its runs: a base config and a grid of changes, or a list of runs.

base: world.yaml                # a file beside this one, or a config written out
grid:                           # every combination; any dotted key of a config
  method: [fedavg, {fedinit: {beta: 0.1}}]
  seed: [0, 1, 2]
  local.rate: {slow: 0.01, fast: 0.1}     # labels, where a value makes no good name
runs:                           # and, or instead, runs of their own
  special: {method: special, local.rate: 0.05}
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.config.config import Config, from_mapping
from shoal.config.load import read
from shoal.config.overrides import put
from shoal.errors import UserError, suggestion

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

    >>> _label("method", ["scaffold", {"fedinit": {"beta": 1}}]), _label("local.rate", 0.1)
    ('scaffold+fedinit-beta1', 'rate0.1')
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
    values = copy.deepcopy(dict(base))
    for key, value in change.items():
        put(values, str(key).split("."), copy.deepcopy(value), f"{key}={value}")
    return from_mapping(values, lambda key: f"{path.name}, run {name}: ")


def _mapping(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{path.name}: {key} must be a mapping")
    return dict(value)
