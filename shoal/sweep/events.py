"""What the processes of a sweep tell each other, one JSON object a line, and what comes of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["finished", "skipped", "failed", "diverged", "stopped"]


@dataclass(frozen=True)
class Event:
    """A run went on by a round, came to its end, or has something to say.

    ``status`` is None while the run plays. ``text`` is the sentence of a failure, or a note.
    """

    run: str
    round: int = 0  # rounds played so far
    rounds: int = 0
    accuracy: float | None = None
    status: Status | None = None
    text: str = ""

    def line(self) -> bytes:
        """One line, short enough to be written at once by several processes into one pipe.

        >>> Event("a", 3, 10).line()
        b'{"run": "a", "round": 3, "rounds": 10}\\n'
        """
        given = {k: v for k, v in asdict(self).items() if v not in ("", None)}
        given["text"] = self.text[:1500]
        return (json.dumps({k: v for k, v in given.items() if v != ""}) + "\n").encode()

    @classmethod
    def of(cls, line: bytes) -> Event:
        values: dict[str, Any] = json.loads(line)
        return cls(**values)


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended. ``text`` says why, where it did not finish."""

    status: Status
    text: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def fine(self) -> bool:
        """Whether the run's directory is finished."""
        return self.status in ("finished", "skipped")
