"""Small runs that several tests share, and what it means for two of them to be equal."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

# Server state that grows (sessions), memories, a reset of both, and a probe.
STATEFUL: dict[str, Any] = {
    "problem": {"name": "quadratic", "sessions": 4, "rounds": 3, "clients": 3},
    "method": ["scaffold", "fedinit", {"dynamic_init": {"R": 10}}],
    "participation": 2,
    "local": {"epochs": 2, "lr": 0.1},
    "engine": "loop",
    "checkpoint": {"every": 2},
}


def stateful(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STATEFUL), **changes}


def rounds(directory: Path, *, seconds: bool = False) -> list[dict[str, Any]]:
    """The records of a run; time is the one thing that may differ."""
    lines = (directory / "rounds.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return records if seconds else [_timeless(record) for record in records]


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


def content(directory: Path) -> dict[str, Any]:
    """Everything a run leaves that must be the same, byte for byte, but for time."""
    timeless = [json.dumps(record) for record in rounds(directory)]
    names = ("model.safetensors", "clients.parquet", "config.yaml", "world.json")
    return {"rounds": timeless, **{name: (directory / name).read_bytes() for name in names}}
