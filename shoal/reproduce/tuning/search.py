"""Trials as run directories, and what they come to."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.config import Config, from_mapping
from shoal.reproduce.cells import run_name
from shoal.reproduce.tuning.space import Setting, grid_of, trials
from shoal.rundir import RunDir

HELD_OUT = 0.2  # of every client's rows, where the config holds out none


@dataclass(frozen=True)
class Trial:
    """One setting of one method, scored on rows that it does not train on."""

    method: str
    setting: Setting
    path: Path
    config: Config

    def score(self, name: str) -> float | None:
        """A figure of the finished run's summary."""
        where = RunDir(self.path)
        if not where.finished:
            return None
        found = json.loads(where.summary.read_text(encoding="utf-8")).get(name)
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
        values = copy.deepcopy(dict(self.base))
        local = dict(values.get("local") or {})
        local["rate"] = setting["local.rate"]
        own = {k: v for k, v in setting.items() if k != "local.rate"}
        values["method"] = {method: own} if own else method
        if held_out:
            if local.get("validation", "auto") in ("auto", 0):
                local["validation"] = HELD_OUT
            # validation rows are of the training data: test rows must not choose a setting
            rules = {**(values.get("evaluate") or {}), "on": "members", "held_out": None}
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
