"""What a logger is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.rundir import RunDir


class Sink(Protocol):
    """Takes rounds in order, each once."""

    def next_round(self) -> int:
        """The round after the last one that is safely kept; asked once, before anything else."""
        ...

    def write(self, round: int, figures: Mapping[str, float]) -> None: ...

    def close(self, finished: bool) -> None:
        """Keep what is still held back; ``finished``: the run will play no further round."""
        ...


@dataclass(frozen=True)
class Source:
    """The run that is logged."""

    where: RunDir
    config: dict[str, Any]  # complete and resolved, as in config.yaml

    @property
    def name(self) -> str:
        return self.where.path.resolve().name

    @property
    def folder(self) -> Path:
        """Where loggers keep what is theirs."""
        return self.where.path / "logs"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots, as trackers show settings.

    >>> flat({"seed": 1, "local": {"rate": 0.1}})
    {'seed': 1, 'local.rate': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
