"""A smaller case that breaks a law as well: settings go back to their defaults, one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzz.draw import Case

KEPT = ("data", "model", "world", "problem", "device", "engine", "seed", "local")
PLAIN: dict[str, Any] = {"epochs": 1, "batch": 4, "shuffle": False, "last_batch": "keep"}


def smaller(case: Case, breaks: Callable[[Case], bool], seconds: float) -> Case:
    """The smallest that is found in so many seconds."""
    end = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for candidate in _simpler(case):
            if time.monotonic() > end:
                return case
            if breaks(candidate):
                case, found = candidate, True
                break
    return case


def _simpler(case: Case) -> Iterator[Case]:
    """Cases that say one thing less."""
    config = dict(case.config)
    for law in case.laws:
        yield replace(case, laws=tuple(other for other in case.laws if other != law))
    if case.limits:
        yield replace(case, limits=())
    if case.weighted:
        yield replace(case, weighted=False)
    if case.rows is not None:
        yield replace(case, rows=None)
    for key in config:
        if key not in KEPT:
            yield replace(case, config={k: v for k, v in config.items() if k != key})
    method = config.get("method")
    if isinstance(method, list):
        for place, part in enumerate(method):
            if len(method) > 1:
                fewer = [*method[:place], *method[place + 1 :]]
                yield replace(case, config={**config, "method": fewer})
            ((name, settings),) = part.items()
            for setting in settings:
                less = {k: v for k, v in settings.items() if k != setting}
                changed = [*method[:place], {name: less}, *method[place + 1 :]]
                yield replace(case, config={**config, "method": changed})
    local = dict(config["local"])
    for key in local:
        if key != "lr" and local[key] != PLAIN.get(key):
            less = {k: v for k, v in local.items() if k != key}
            if key in PLAIN:
                less[key] = PLAIN[key]
            yield replace(case, config={**config, "local": less})
    world = config.get("world")
    if world and world["name"] != "static":
        plain = {"name": "static", "members": world["members"], "rounds": 3, "partition": "iid"}
        yield replace(case, config={**config, "world": plain})
    elif world and world["members"] > 1:
        half = {**world, "members": (world["members"] + 1) // 2}
        yield replace(case, config={**config, "world": half})
