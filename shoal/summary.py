"""What a finished run comes to."""

from __future__ import annotations

import json
import platform
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch

import shoal
from shoal.config.build import Plan
from shoal.metrics.continual import continual
from shoal.metrics.cost import cost
from shoal.metrics.detection import detection
from shoal.metrics.recovery import Recovery
from shoal.metrics.target import to_best, to_target
from shoal.metrics.transitions import transitions

TOTALS = ("steps", "samples", "epochs", "bytes_up", "bytes_down")
SPREADS = ("personalised", "generalised", "metrics")


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """The records of ``rounds.jsonl``; a line that was cut off by a kill is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


@dataclass
class Course:
    """A few numbers a round, kept while the records go by."""

    accuracy: list[float | None] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluating: float = 0.0
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    noticed: list[int] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    participants: int = 0
    latest: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, int] | None = None

    def add(self, record: dict[str, Any]) -> None:
        self.accuracy.append(record["accuracy"])
        self.loss.append(record["loss"])
        self.seconds.append(record["seconds"])
        self.evaluating += record.get("seconds_evaluating", 0.0)
        if record["shift"] is not None:
            self.kinds[record["round"]] = record["shift"]
        if record.get("noticed"):
            self.noticed.append(record["round"])
        if record["tasks"]:
            kept = {key: record.get(key) for key in ("task", "tasks", "ahead")}
            if self.tasks and self.tasks[-1]["task"] == kept["task"]:
                self.tasks.pop()  # the last evaluated round of a stage is the one that counts
            self.tasks.append(kept)
        for name in TOTALS:
            self.totals[name] = self.totals.get(name, 0) + record.get(name, 0)
        for name, value in (
            ("rejected", len(record["rejected"])),
            ("short_rounds", record["short"]),
        ):
            self.totals[name] = self.totals.get(name, 0) + value
        self.participants += len(record.get("cohort", ())) * record.get("attempts", 1)
        self.latest |= {key: record[key] for key in SPREADS if record.get(key)}
        self.stored = record.get("stored", self.stored)


def figures(
    records: Iterable[dict[str, Any]],
    rule: Recovery | None = None,
    *,
    window: int = 10,
    target: float | None = None,
    detecting: bool = False,
) -> dict[str, Any]:
    """Final and mean accuracy, what every shift did, and totals; holds a few numbers a round.

    ``window`` is the number of rounds that count as right after a shift; precision, recall and
    delay of detection are there if anything was noticed, or a detector was there (``detecting``).
    """
    course = Course(totals=dict.fromkeys((*TOTALS, "rejected", "short_rounds"), 0))
    for record in records:
        course.add(record)
    accuracy, seconds = course.accuracy, sum(course.seconds)
    known = [a for a in accuracy if a is not None]
    losses = [v for v in course.loss if v is not None]
    shifts = (rule or Recovery()).all(accuracy, list(course.kinds))
    after = {t.round: t for t in transitions(accuracy, list(course.kinds), window)}
    found: dict[str, Any] = {
        "rounds": len(accuracy),
        "final_accuracy": known[-1] if known else None,
        "mean_accuracy": sum(known) / len(known) if known else None,
        "best_accuracy": max(known) if known else None,
        "final_loss": losses[-1] if losses else None,
        "shifts": [
            {
                **course.kinds[s.round],
                **s._asdict(),
                "recovered": s.recovered,
                "first_rounds": after[s.round].after,
                "first_rounds_authors": after[s.round].authors,
            }
            for s in shifts
        ],
        "mean_dip": _mean([s.dip for s in shifts]),
        "mean_rounds_to_recovery": _mean([s.rounds for s in shifts]),
        "mean_first_rounds": _mean([t.after for t in after.values()]),
        "unrecovered": sum(not s.recovered for s in shifts),
        "to_best": to_best(accuracy, course.seconds)._asdict(),
        "totals": course.totals,
        "seconds": round(seconds, 6),
        "seconds_evaluating": round(course.evaluating, 6),
        "evaluation_share": round(course.evaluating / seconds, 4) if seconds else None,
        **course.latest,
    }
    if target is not None:
        found["to_target"] = {
            "target": target,
            **to_target(accuracy, course.seconds, target)._asdict(),
        }
    tasks = continual(course.tasks)
    if tasks is not None:
        found["continual"] = tasks
    if course.noticed or (detecting and course.kinds):
        seen = detection(list(course.kinds), course.noticed, len(accuracy))
        found["detection"] = seen._asdict()
    if course.stored is not None:
        found["stored"] = {**course.stored, "participants": course.participants}
    return found


def summary(plan: Plan, records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """``summary.json``."""
    rules, method = plan.config.evaluate, plan.settings.method
    detecting = any(part.fills("notice") for part in method.parts)
    found = figures(records, window=rules.window, target=rules.target, detecting=detecting)
    return {
        "format": 1,
        "method": method.name,
        "seed": plan.config.seed,
        "engine": plan.config.engine,
        "device": plan.config.device,
        **found,
        "cost": costs(plan, found),
        "peak_memory_mb": peak_memory_mb(),
        "parameters": plan.settings.task.layout.size,
        "versions": {
            "shoal": shoal.__version__,
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def costs(plan: Plan, found: dict[str, Any]) -> dict[str, Any] | None:
    """Vectors sent and kept (the rule is in :mod:`shoal.metrics.cost`), from measured bytes."""
    stored = found.get("stored")
    if stored is None:
        return None
    task = plan.settings.task
    size = (task.layout.size + task.stats_layout.size) * task.dtype.itemsize
    totals = found["totals"]
    counted = {k: stored[k] for k in ("participants", "clients", "client_bytes", "server_bytes")}
    made = cost(size, bytes_down=totals["bytes_down"], bytes_up=totals["bytes_up"], **counted)
    return {
        **made._asdict(),
        "communication_ratio": made.communication_ratio,
        "storage_ratio": made.storage_ratio,
    }


def peak_memory_mb() -> float:
    """The most memory this process ever had in use, in MiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
