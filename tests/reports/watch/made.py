"""Run directories without a run: what the live page reads, written by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FUTURE = 4_102_444_800  # the year 2100
CONFIG = "seed: 3\nmethod: [scaffold, fedinit]\nengine: loop\nevaluate: {window: 10}\n"


def record(round: int, **changes: Any) -> dict[str, Any]:
    """A round's record as a player makes it."""
    shift = {"kinds": ["members"], "announced": True} if round == 2 else None
    return {
        "round": round,
        "session": int(round >= 2),
        "task": 0,
        "shift": shift,
        "noticed": False,
        "active": 2,
        "asked": 2,
        "short": False,
        "cohort": [0, 1],
        "attempts": 1,
        "accuracy": 0.1 * round,
        "loss": 2.0 - 0.1 * round,
        "tasks": {},
        "steps": 4,
        "samples": 20,
        "epochs": 2,
        "bytes_up": 800,
        "bytes_down": 800,
        "rejected": [],
        "seconds": 2.0,
        **changes,
    }


def lines(rounds: Iterable[int], **changes: Any) -> str:
    return "".join(json.dumps(record(r, **changes)) + "\n" for r in rounds)


def made_run(directory: Path, rounds: int = 4, planned: int = 8, config: str = CONFIG) -> Path:
    """A run that has played ``rounds`` rounds and is not finished."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(config, encoding="utf-8")
    world = {
        "format": 1,
        "rounds": planned,
        "members": 4,
        "sessions": [{"start": 0, "members": [[0, 2]]}, {"start": 2, "members": [[2, 4]]}],
        "shifts": [],
    }
    (directory / "world.json").write_text(json.dumps(world), encoding="utf-8")
    # news from the future: however slow a test is, the run does not fall silent meanwhile
    os.utime(directory / "config.yaml", (FUTURE, FUTURE))
    if rounds:
        (directory / "rounds.jsonl").write_text(lines(range(rounds)), encoding="utf-8")
    return directory


def append(directory: Path, rounds: Iterable[int], **changes: Any) -> None:
    with (directory / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write(lines(rounds, **changes))


def finish(directory: Path, rounds: int) -> None:
    summary = {"format": 1, "method": "scaffold + fedinit", "seed": 3, "rounds": rounds}
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
