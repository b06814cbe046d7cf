"""Equal trials for every method, on held-out rows."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from shoal.config.schema import Config, from_mapping
from shoal.core import rng
from shoal.core.errors import UserError
from shoal.core.files import asset
from shoal.core.old_names import renamed
from shoal.papers.cells import run_name
from shoal.papers.tables import csv_text, markdown_table
from shoal.runs.directory import RunDir

# ---- space ---------------------------------------------------------------------------------------
# What there is to try: the clients' rate for every method, and a method's own settings.

Setting = dict[str, Any]  # local.lr and the method's own settings

# The clients' rates that the FedInit paper tries (its appendix), unless a config says others.
RATES = (0.01, 0.1, 0.5, 1.0)
# A method's own settings, and what is tried of each.
GRIDS: dict[str, dict[str, Sequence[Any]]] = yaml.safe_load(asset("shoal.papers", "grids.yaml"))


def trials(
    method: str, count: int, rates: Sequence[float], seed: int, own: Mapping[str, Sequence[Any]]
) -> list[Setting]:
    """Exactly ``count`` different settings of a method: points of its grid in a drawn order, then,
    when the grid is used up, rates drawn between its lowest and highest.

    >>> [len(trials(m, 9, (0.01, 0.1), 0, grid_of(m))) for m in ("fedavg", "fedinit")]
    [9, 9]
    """
    if min(rates) <= 0:
        raise UserError(f"rates are {list(rates)}; every rate must be above 0")
    if len(set(rates)) < 2:
        raise UserError(f"rates are {list(rates)}; give at least two, lowest and highest")
    grid = [
        {"local.lr": rate, **dict(zip(own, values, strict=True))}
        for rate in rates
        for values in product(*own.values())
    ]
    draw = rng.generator(seed, rng.Purpose.PART, *method.encode())
    order = [grid[i] for i in draw.permutation(len(grid))]
    return [*order[:count], *_between(rates, own, draw, count - len(order))]


def _between(
    rates: Sequence[float], own: Mapping[str, Sequence[Any]], draw: Any, count: int
) -> Iterator[Setting]:
    low, high = math.log(min(rates)), math.log(max(rates))
    for _ in range(max(0, count)):
        rate = float(f"{math.exp(draw.uniform(low, high)):.4g}")
        yield {"local.lr": rate, **{k: v[int(draw.integers(len(v)))] for k, v in own.items()}}


def grid_of(method: str) -> dict[str, Sequence[Any]]:
    """A method's own settings that are tried; none for a method that is not in the table."""
    return dict(GRIDS.get(method, {}))


# ---- search --------------------------------------------------------------------------------------
# Trials as run directories, and what they come to.

HELD_OUT = 0.2  # of every client's rows, where the config holds out none


@dataclass(frozen=True)
class Trial:
    """One setting of one method, scored on rows that it does not train on."""

    method: str
    setting: Setting
    path: Path
    config: Config

    @property
    def finished(self) -> bool:
        return RunDir(self.path).finished

    def score(self, name: str) -> float | None:
        """A figure of the finished run's summary."""
        if not self.finished:
            return None
        found = json.loads(RunDir(self.path).summary.read_text(encoding="utf-8")).get(name)
        return None if found is None else float(found)


@dataclass(frozen=True)
class TuningPlan:
    """What is tuned: a base config, methods, and how many trials each of them gets."""

    base: Mapping[str, Any]
    methods: Sequence[str]
    count: int
    rates: Sequence[float]
    seed: int

    def all(self, runs: Path) -> list[Trial]:
        out = []
        for method in self.methods:
            own = grid_of(method)
            for setting in trials(method, self.count, self.rates, self.seed, own):
                config = self.config(method, setting, held_out=True)
                out.append(Trial(method, setting, runs / run_name(config), config))
        return out

    def config(
        self, method: str, setting: Setting, held_out: bool, seed: int | None = None
    ) -> Config:
        """The base with a method's setting; with ``held_out`` it is scored on members' own rows
        that are held out, else as the base says."""
        values = copy.deepcopy(renamed(self.base))
        local = dict(values.get("local") or {})
        local["lr"] = setting["local.lr"]
        own = {k: v for k, v in setting.items() if k != "local.lr"}
        values["method"] = {method: own} if own else method
        if held_out:
            if local.get("validation", "auto") in ("auto", 0):
                local["validation"] = HELD_OUT
            # validation rows are of the training data: test rows must not choose a setting
            rules = dict(values.get("evaluate") or {})
            rules |= {"rows": "members_held_out", "held_out": None}
            values["evaluate"] = rules
        values["local"] = local
        values["seed"] = self.seed if seed is None else seed
        return from_mapping(values)


def best(found: Sequence[Trial], score: str) -> dict[str, Trial]:
    """The best trial of every method that has one that finished; the earlier one of equals."""
    out: dict[str, Trial] = {}
    for trial in found:
        value = trial.score(score)
        if value is None:
            continue
        before = out.get(trial.method)
        if before is None or value > (before.score(score) or float("-inf")):
            out[trial.method] = trial
    return out


def finals(
    plan: TuningPlan, winners: Mapping[str, Trial], seeds: Sequence[int], runs: Path
) -> dict[str, list[tuple[Path, Config]]]:
    """The best settings once more: on all rows, scored as the base says, for every seed."""
    out: dict[str, list[tuple[Path, Config]]] = {}
    for method, trial in winners.items():
        for seed in seeds:
            config = plan.config(method, trial.setting, held_out=False, seed=seed)
            out.setdefault(method, []).append((runs / run_name(config), config))
    return out


def final_scores(
    final: Mapping[str, Sequence[tuple[Path, Config]]], score: str
) -> dict[str, list[float]]:
    """The score of every method's finished runs on test rows, in percent."""
    found = {}
    for method, runs in final.items():
        scores = [Trial(method, {}, path, config).score(score) for path, config in runs]
        found[method] = [100.0 * value for value in scores if value is not None]
    return found


# ---- table ---------------------------------------------------------------------------------------
# What tuning found, for a page and a file.


def trials_csv(trials: Sequence[Trial], score: str) -> str:
    """One row per trial."""
    rows = []
    for trial in trials:
        value = trial.score(score)
        shown = "" if value is None else f"{value:.6f}"
        rows.append((trial.method, said(trial.setting), shown, trial.path.name))
    return csv_text(("method", "setting", score, "run"), rows)


def said(setting: Mapping[str, object]) -> str:
    """A setting in words.

    >>> said({"local.lr": 0.1, "mu": 1})
    'local.lr 0.1, mu 1'
    """
    return ", ".join(f"{key} {value}" for key, value in setting.items())


def tuned_md(
    plan: str,
    best: Mapping[str, Trial],
    score: str,
    test: Mapping[str, Sequence[float]],
    tried: int,
) -> str:
    """The best setting of every method, and how it does on test rows."""
    rows = []
    for method, trial in best.items():
        found = test.get(method, ())
        mean = f"{sum(found) / len(found):.2f}" if found else ""
        spread = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
        held = trial.score(score)
        rows.append((method, said(trial.setting), f"{100 * (held or 0.0):.2f}", mean + spread))
    head = ("method", "best setting", f"{score} on held-out rows, %", f"{score} on test rows, %")
    rows.sort(key=lambda row: row[3], reverse=True)
    note = f"{plan}. Every method had {tried} trials.\n\n"
    return "# Tuned\n\n" + note + markdown_table(head, rows)
