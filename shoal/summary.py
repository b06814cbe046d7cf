"""What a finished run comes to."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

import shoal
from shoal.config.build import Plan
from shoal.metrics.recovery import Recovery

TOTALS = ("steps", "samples", "bytes_up", "bytes_down")


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """The records of ``rounds.jsonl``; a line that was cut off by a kill is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def figures(records: Iterable[dict[str, Any]], rule: Recovery | None = None) -> dict[str, Any]:
    """Final and mean accuracy, what every shift did, and totals; holds a few numbers a round."""
    accuracy: list[float | None] = []
    loss: list[float | None] = []
    kinds: dict[int, dict[str, Any]] = {}
    totals = dict.fromkeys((*TOTALS, "rejected", "short_rounds"), 0)
    seconds = 0.0
    for record in records:
        accuracy.append(record["accuracy"])
        loss.append(record["loss"])
        if record["shift"] is not None:
            kinds[record["round"]] = record["shift"]
        for name in TOTALS:
            totals[name] += record[name]
        totals["rejected"] += len(record["rejected"])
        totals["short_rounds"] += record["short"]
        seconds += record["seconds"]
    known = [a for a in accuracy if a is not None]
    losses = [v for v in loss if v is not None]
    shifts = (rule or Recovery()).all(accuracy, list(kinds))
    return {
        "rounds": len(accuracy),
        "final_accuracy": known[-1] if known else None,
        "mean_accuracy": sum(known) / len(known) if known else None,
        "best_accuracy": max(known) if known else None,
        "final_loss": losses[-1] if losses else None,
        "shifts": [{**kinds[s.round], **s._asdict(), "recovered": s.recovered} for s in shifts],
        "mean_dip": _mean([s.dip for s in shifts]),
        "mean_rounds_to_recovery": _mean([s.rounds for s in shifts]),
        "unrecovered": sum(not s.recovered for s in shifts),
        "totals": totals,
        "seconds": round(seconds, 6),
    }


def summary(plan: Plan, records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """``summary.json``."""
    return {
        "format": 1,
        "method": plan.settings.method.name,
        "seed": plan.config.seed,
        "engine": plan.config.engine,
        "device": plan.config.device,
        **figures(records),
        "parameters": plan.settings.task.layout.size,
        "versions": {
            "shoal": shoal.__version__,
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
