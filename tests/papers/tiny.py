"""A recipe that plays in no time, and run directories written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

RECIPE: dict[str, Any] = {
    "format": 1,
    "paper": "tiny",
    "table": "Table 1",
    "caption": "quadratics",
    "seeds": [0, 1],
    "base": {
        "problem": {"name": "quadratic", "sessions": 2, "rounds": 3, "clients": 3},
        "local": {"epochs": 1, "lr": 0.1},
        "engine": "loop",
        "method": {"algorithm": "fedavg", "start": None},
    },
    "axes": {
        "dataset": {"near": {}, "far": {"set": {"local.lr": 0.2}}},
        "method": {
            "Plain": {},
            "Same as plain": {"set": {"method.algorithm": "fedavg"}},
            "Pulled": {"set": {"method.algorithm": {"fedprox": {"mu": 1.0}}}},
        },
    },
    "variants": {"authors": {"about": "as released"}, "paper": {"about": "as printed"}},
    "when": [
        {"if": {"variant": "paper", "method": "Pulled"}, "set": {"method.algorithm.fedprox.mu": 2}}
    ],
    "measures": [
        {
            "name": "last loss",
            "measure": {"recorded": {"key": "loss"}},
            "beside": {"first loss": {"recorded": {"key": "loss", "round": 0}}},
        }
    ],
    "reduced": {"about": "one round", "set": {"problem.rounds": 1}, "only": {"dataset": ["near"]}},
}


def write_recipe(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **changes}, sort_keys=False))
    return path


def write_run(
    path: Path, accuracy: Sequence[float | None], sessions: Sequence[int], **more: Sequence[Any]
) -> Path:
    """A finished run with these accuracies, one a round, and the session of each round."""
    path.mkdir(parents=True)
    records = [
        {"round": r, "session": s, "accuracy": a, **{k: v[r] for k, v in more.items()}}
        for r, (a, s) in enumerate(zip(accuracy, sessions, strict=True))
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (path / "config.yaml").write_text(
        "data: digits\nworld: {name: churn, members: 4, groups: 2, sessions: 4}\n"
    )
    (path / "summary.json").write_text(json.dumps({"cost": {"up": 2.0}, "seconds": 1.0}))
    return path
