"""Run directories written by hand: what a run leaves, without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shoal.runs.journal import ROW, write_clients

CONFIG: dict[str, Any] = {
    "format": 1,
    "seed": 1,
    "method": ["fedavg", {"dynamic_init": {"R": 10}}],
    "world": {"name": "mixed", "members": 8},
    "local": {"lr": 0.1},
    "evaluate": {"rows": "members_held_out_both_models", "window": 10, "target": None},
    "engine": "stacked",
}
SHIFTS = (
    {"round": 10, "kinds": ["members"], "announced": True, "note": "session 1: members 4..7"},
    {"round": 20, "kinds": ["concept"], "announced": False, "note": "drift: swapped labels"},
    {"round": 30, "kinds": ["domain"], "announced": True, "note": "stage 1: domain dark"},
)
WORLD: dict[str, Any] = {
    "format": 1,
    "members": 8,
    "rounds": 40,
    "sessions": [{"start": 0, "members": [[0, 4]]}, {"start": 10, "members": [[4, 8]]}],
    "available": None,
    "drifts": [{"kind": "sudden", "rounds": [20], "reached": [8], "key": "1", "map": [1, 0]}],
    "stages": [
        {"start": 0, "kind": "domain", "name": "plain"},
        {"start": 30, "kind": "domain", "name": "dark"},
    ],
    "shifts": list(SHIFTS),
}


def accuracy(round: int) -> float:
    """Up to 0.9, down to 0.2 at every shift and back in a few rounds; after the last one never."""
    since = round % 10
    if round < 10:
        return min(0.9, 0.3 + 0.2 * since)
    return min(0.9 if round < 30 else 0.5, 0.2 + 0.2 * since)


def record(round: int, /, **changes: Any) -> dict[str, Any]:
    """A round's record with everything that parts can add."""
    shift = next((s for s in SHIFTS if s["round"] == round), None)
    own = accuracy(round)
    tasks = {"task 0": own} if round < 30 else {"task 0": own / 2, "task 1": own}
    made: dict[str, Any] = {
        "round": round,
        "session": int(round >= 10),
        "task": int(round >= 30),
        "shift": shift and {k: shift[k] for k in ("kinds", "announced")},
        "noticed": round == 22,
        "active": 4,
        "asked": 3,
        "short": False,
        "cohort": [0, 1, 2],
        "attempts": 1,
        "accuracy": own,
        "loss": 1.0 - own,
        "tasks": tasks,
        "personalised": {"mean": own, "std": 0.1, "worst_decile": own / 2, "members": 4},
        "steps": 6,
        "samples": 60,
        "epochs": 3,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "rejected": [{"client": 2, "reason": "not finite"}] if round == 5 else [],
        "gradient_disparity": 0.001 * round,
        "effective_rate": 1.0,
        "session_started": int(round >= 10) + 2 * int(round >= 30),
        "session_weights": [0.75, 0.25] if round >= 30 else [],
        "session_distances": [0.1, 0.6] if round >= 30 else [],
        "seconds": 0.5,
        "seconds_evaluating": 0.1,
    }
    return {**made, **changes}


def made_run(
    path: Path,
    config: dict[str, Any] | None = None,
    *,
    rounds: int = 40,
    finished: bool = True,
    raised: float = 0.0,
    world: dict[str, Any] | None = None,
    records: list[dict[str, Any]] | None = None,
) -> Path:
    """A run directory; ``raised`` is added to every accuracy."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **(config or {})}))
    (path / "world.json").write_text(json.dumps({**WORLD, **(world or {})}))
    played = records or [record(r, accuracy=accuracy(r) + raised) for r in range(rounds)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in played))
    made_clients(path, len(played), 8)
    if finished:
        (path / "summary.json").write_text("{}")
    return path


def made_clients(path: Path, rounds: int, clients: int, every: int = 1) -> None:
    """Clients of the upper half fare well, those of the lower half worse and worse."""
    which = np.arange(clients)
    rows = path / "rows"
    with rows.open("wb") as file:
        for round in range(0, rounds, every):
            table = np.zeros(clients, ROW)
            table["round"], table["client"], table["steps"] = round, which, which % 2
            table["norm"] = 1.0 + which / clients
            table["accuracy"] = np.where(which < clients // 2, 0.5 - 0.4 * round / rounds, 0.9)
            file.write(table.tobytes())
    write_clients(rows, path / "clients.parquet")
    rows.unlink()


def large_run(path: Path, rounds: int = 2000, members: int = 1000) -> Path:
    """As many rounds and clients as a report must stand: members change before every round."""
    generator = np.random.default_rng(0)
    half = members // 2
    sessions: list[dict[str, Any]] = [{"start": 0, "members": [[0, half]]}]
    for start in range(1, rounds):
        left, came = (sorted(generator.choice(members, 5, False).tolist()) for _ in range(2))
        sessions.append({"start": start, "left": left, "came": came})
    told = {"kinds": ["members"], "announced": True}
    cohort = list(range(members))
    made = [
        record(
            r,
            cohort=cohort,
            active=half,
            shift=told if r else None,
            accuracy=1.0 - 0.9 * float(np.exp(-r / 300)) if r != 777 else 0.0,
            tasks={},
            session_weights=[],
        )
        for r in range(rounds)
    ]
    shifts = [{"round": r, **told, "note": "5 came, 5 left"} for r in range(1, rounds)]
    world = {"members": members, "rounds": rounds, "sessions": sessions, "shifts": shifts}
    made_run(path, world={**world, "drifts": [], "stages": []}, records=made)
    made_clients(path, rounds, members, every=4)
    return path
