"""Which runs of a sweep share a process: those that differ in nothing but the seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.config.config import Config
from shoal.config.method import build as build_method
from shoal.config.subject import drawn_data, task_of
from shoal.data.sources import Dataset
from shoal.errors import UserError

MOST = 8  # runs that step together; more would only wait for each other


@dataclass(frozen=True)
class Group:
    """Runs that one process plays, one after another or in lock-step."""

    runs: dict[str, Config]


def grouped(runs: Mapping[str, Config], data: Mapping[str, Dataset], stack: bool) -> list[Group]:
    """Groups in the order of their first runs."""
    found: dict[str, list[dict[str, Config]]] = {}
    for name, config in runs.items():
        key = _key(config) if stack and _stackable(config, data) else name
        bundles = found.setdefault(key, [{}])
        if len(bundles[-1]) == MOST:
            bundles.append({})
        bundles[-1][name] = config
    return [Group(bundle) for bundles in found.values() for bundle in bundles]


def data_key(config: Config) -> str | None:
    """Runs with the same key read the same data; None: a problem brings its own."""
    if config.problem is not None:
        return None
    domains = config.world.options.get("domains")
    return json.dumps([drawn_data(config), domains], sort_keys=True)


def _key(config: Config) -> str:
    values = config.complete()
    del values["seed"]
    return json.dumps(values, sort_keys=True)


def _stackable(config: Config, data: Mapping[str, Dataset]) -> bool:
    """Whether clients of this run are stacked at all; convolutions gain nothing by company."""
    key = data_key(config)
    if config.engine not in ("auto", "vectorized") or config.device not in ("auto", "cpu"):
        return False
    try:
        method = build_method(config.method)
        return not method.eager_reason and (key is None or task_of(config, data[key]).stackable)
    except UserError:
        return False  # said properly when the run is built
