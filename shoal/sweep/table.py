"""The table at the end of a sweep: one line a set of settings, figures over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from shoal.config.config import Config
from shoal.rundir import RunDir
from shoal.sweep.events import Outcome

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
    for key in ("final_accuracy", "mean_accuracy"):
        values = [100 * s[key] for s in summaries if s.get(key) is not None]
        shown.append(_spread(values))
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
