"""A run directory, read for tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from shoal.config.load import load_run
from shoal.errors import UserError
from shoal.metrics.recovery import Recovery
from shoal.reports.names import method_name, shift_name
from shoal.rundir import RunDir
from shoal.summary import figures, read_rounds


class Story(NamedTuple):
    """What a run did, round by round, and what it comes to."""

    path: Path
    method: str
    seed: int
    records: list[dict[str, Any]]
    figures: dict[str, Any]

    @property
    def shifts(self) -> list[tuple[int, dict[str, Any]]]:
        return [(r["round"], r["shift"]) for r in self.records if r["shift"] is not None]

    @property
    def accuracy(self) -> list[tuple[int, float]]:
        """Rounds in which accuracy was measured."""
        found = ((r["round"], r["accuracy"]) for r in self.records)
        return [(number, value) for number, value in found if value is not None]


def read_story(directory: Path) -> Story:
    """A run that has played at least one round, finished or not."""
    where = RunDir(directory)
    if not where.config.exists():
        raise UserError(f"{directory} is no run directory (it has no config.yaml)")
    config = load_run(where.config)
    records = list(read_rounds(where.rounds)) if where.rounds.exists() else []
    if not records:
        raise UserError(f"{directory} has no rounds yet; start it with shoal resume {directory}")
    rules = config.evaluate
    rule = Recovery(**rules.recovery.model_dump(), target=rules.target)
    found = figures(records, rule, window=rules.window)
    return Story(directory, method_name(config.method), config.seed, records, found)


__all__ = ["Story", "method_name", "read_story", "shift_name"]
