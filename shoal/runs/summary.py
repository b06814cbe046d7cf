"""What a finished run comes to."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

import shoal
from shoal.config.build import RunPlan
from shoal.core.types import Batch, Outputs
from shoal.engines.loop import Loop
from shoal.metrics.cost import cost
from shoal.metrics.figures import figures, scored_on
from shoal.metrics.shifts import Recovery
from shoal.rounds.play import play_round
from shoal.rounds.state import Federation


def summary(
    plan: RunPlan, records: Iterable[dict[str, Any]], source: str = "simulated"
) -> dict[str, Any]:
    """``summary.json``."""
    rules, method = plan.config.evaluate, plan.settings.method
    detecting = any(part.fills("detect") for part in method.parts)
    rule = Recovery(**rules.recovery.model_dump(), target=rules.target)
    found = figures(records, rule, window=rules.window, detecting=detecting)
    return {
        "format": 1,
        **({} if source == "simulated" else {"source": source}),
        "method": method.name,
        "seed": plan.config.seed,
        "engine": plan.config.engine,
        "device": plan.config.device,
        "scored_on": scored_on(rules.model_dump(), found.get("own_rows"), source),
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


def costs(plan: RunPlan, found: dict[str, Any]) -> dict[str, Any] | None:
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


class _Counting:
    """A task that counts the forward passes that gradients are taken of."""

    def __init__(self, task: Any) -> None:
        self.task, self.passes = task, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def forward(self, theta: Tensor, batch: Batch, stats: Tensor, train: bool) -> Outputs:
        self.passes += train
        found: Outputs = self.task.forward(theta, batch, stats, train)
        return found


def gradients_a_step(plan: RunPlan) -> float:
    """Gradients that one client evaluates in its first round, divided by its local steps; what
    probes and questions before training evaluate is counted with it."""
    passes, steps = gradients_of_a_round(plan, (plan.world.at(0).members[0],))
    return passes / max(1, steps)


def gradients_of_a_round(plan: RunPlan, cohort: Sequence[int]) -> tuple[int, int]:
    """Gradients that clients evaluate in the first round, probes included, and their local steps.

    The round is played one client after another, from the start, and thrown away.
    """
    task = _Counting(plan.settings.task)
    moment = plan.world.at(0)
    settings = replace(
        plan.settings,
        program=replace(plan.settings.program, task=task),
        cohorts=(tuple(cohort),),
    )
    federation = Federation.fresh(settings, plan.initial, moment, settings.rates(moment)[0])
    report = play_round(federation, settings, moment, Loop())
    return task.passes, report.steps


def peak_memory_mb() -> float:
    """The most memory this process ever had in use, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss would count what a parent had in use before this program was started
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return round(int(fields["VmHWM"].split()[0]) / 2**10, 1)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)
