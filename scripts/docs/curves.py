"""Runs every method once in a small world, for the pictures and costs on the methods' pages.

    python scripts/docs/curves.py [NAME ...]

Writes docs/methods/curves.json. Without names, only methods that it lacks are run (seconds each,
two minutes for the slowest). One seed: the pictures show behaviour and rank nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from shoal.api import play
from shoal.config.build import build
from shoal.config.schema import Config
from shoal.core.errors import UserError
from shoal.core.files import dump_json, write_text
from shoal.methods.catalog import METHODS
from shoal.papers.comparison import BASE, config_for
from shoal.runs.summary import gradients_a_step

FILE = Path(__file__).parents[2] / "docs" / "methods" / "curves.json"
SMALL: dict[str, Any] = {
    **BASE,
    "world": {
        "name": "mixed",
        "members": 12,
        "sessions": 3,
        "rounds_per_session": 20,
        "groups": 2,
        "domains": ["plain", "inverted"],
        "rounds_per_stage": [30, 30],
        "drift": {"kind": "sudden", "at": 50, "share": 0.5, "swap": [[0, 1], [2, 3]]},
        "partition": {"name": "dirichlet", "alpha": 0.5},
    },
    "participation": 5,
}


def measured(name: str) -> dict[str, Any]:
    """One method: its accuracy over rounds, the shifts, and what it cost."""
    config = config_for(name, SMALL)
    result = play(build(config))
    cost = dict(result.summary["cost"])
    cost["gradients"] = _gradients(config)
    return {
        "settings": config.method if isinstance(config.method, dict) else {},
        "scored_on": config.evaluate.rows,
        "rate": config.local.lr,
        "accuracy": [_short(record["accuracy"]) for record in result.rounds],
        "shifts": [[r["round"], r["shift"]["kinds"]] for r in result.rounds if r["shift"]],
        "final": _short(result.summary["final_accuracy"]),
        "mean": _short(result.summary["mean_accuracy"]),
        "cost": {key: _short(value) for key, value in cost.items()},
    }


def _gradients(config: Config) -> float | None:
    """None where it cannot be counted: a counter cannot stand for the task of a GAN."""
    try:
        return gradients_a_step(build(config))
    except RuntimeError as error:
        print(f"gradients of {config.method} not counted: {error}", flush=True)
        return None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def main(names: list[str]) -> None:
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in names or [n for n in METHODS if n not in known]:
        began = time.monotonic()
        try:
            known[name] = measured(name)
        except UserError as error:
            print(f"{name}: not run: {error}", flush=True)
            continue
        print(f"{name:20} {time.monotonic() - began:6.1f} s", flush=True)
        kept = {n: known[n] for n in sorted(known) if n in METHODS}
        lines = ",\n".join(f" {json.dumps(n)}: {dump_json(value)}" for n, value in kept.items())
        write_text(FILE, "{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
