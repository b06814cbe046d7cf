"""A finished run that goes on for more rounds: the same past, a longer world."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from shoal.core.errors import UserError
from shoal.core.files import dump_json
from shoal.core.world_protocol import World
from shoal.worlds.changes.stages import Stream
from shoal.worlds.world import Composed

# lists of world.json, and what says when an entry begins
BEGIN = {"sessions": "start", "stages": "start", "shifts": "round"}
LONGER = ("rounds", "spec", "segments")


def lengthened(values: Mapping[str, Any], rounds: int, more: int) -> dict[str, Any]:
    """A config whose world lasts ``more`` rounds longer than its ``rounds``; its last session or
    stage goes on.

    >>> lengthened({"world": {"name": "static", "rounds": 5}}, 5, 3)["world"]["rounds"]
    8
    >>> churn = {"world": {"name": "churn", "sessions": 2, "rounds_per_session": 5}}
    >>> lengthened(churn, 10, 3)["world"]["rounds_per_session"]
    [5, 8]
    """
    if more < 1:
        raise UserError(f"--more {more}: it must be at least 1")
    schedule = (values.get("local") or {}).get("schedule")
    if (schedule.get("name") if isinstance(schedule, dict) else schedule) == "polynomial":
        raise UserError("--more: the polynomial schedule falls over all rounds of a session, so a "
                        "longer run has other rates in rounds that were played already; start a "
                        "new run")  # fmt: skip
    out = deepcopy(dict(values))
    problem, world = out.get("problem"), out.get("world")
    if problem is not None:
        if problem.get("segments") is not None or problem.get("sessions", 1) > 1:
            raise UserError("--more: a problem with segments or sessions has no more rounds")
        problem["rounds"] = rounds + more
        return out
    assert isinstance(world, dict)
    name = world.get("name")
    if name == "saved":
        raise UserError("--more: a saved world has the rounds of its file; draw another world")
    counts = {"churn": ("rounds_per_session", world.get("sessions")),
              "domains": ("rounds_per_stage", len(world.get("domains") or ())),
              "classes": ("rounds_per_stage", len(world.get("classes") or ())
                          or world.get("stages"))}  # fmt: skip
    if name not in counts or world.get("rounds") is not None:
        world["rounds"] = rounds + more
        return out
    key, count = counts[name]
    listed = world[key] if isinstance(world[key], list) else [world[key]] * int(count or 1)
    world[key] = [*listed[:-1], listed[-1] + more]
    return out


def check_same_past(world: World, old: Mapping[str, Any], rounds: int) -> None:
    """Refuse a world whose first rounds are others than those that were played."""
    if isinstance(world, Composed) and isinstance(world.stream, Stream):
        raise UserError("--more: in a stream, rows are spread over all rounds, so a longer run is "
                        "another from its first round on; start a new one")  # fmt: skip
    new = json.loads(dump_json(world.saved()))
    for key in sorted(old.keys() - LONGER):
        if _past(key, new.get(key), rounds) != _past(key, old[key], rounds):
            raise UserError(f"--more: a longer world would have other {key} in rounds that were "
                            f"played already; start a new run")  # fmt: skip


def _past(key: str, value: Any, rounds: int) -> Any:
    """What a key of ``world.json`` says of the first rounds."""
    if value is None or key not in (*BEGIN, "drifts", "calendar"):
        return value
    if key == "calendar":
        return {**value, "begins": value["begins"][: -(-rounds // value["rounds_per_period"])]}
    if key == "drifts":
        pairs = [zip(d["rounds"], d["reached"], strict=True) for d in value]
        return [{**d, "rounds": [], "reached": [p for p in own if p[0] < rounds]}
                for d, own in zip(value, pairs, strict=True)]  # fmt: skip
    return [entry for entry in value if entry[BEGIN[key]] < rounds]
