"""Runs that have diverged: uploads or the loss are not finite, or the loss grew out of bounds.

Config and seed decide a run, so playing it again would end the same way. It keeps its records, and
is not played again unless its folder is removed; what it was compared with is compared without it,
and a page names it.
"""

from __future__ import annotations

import json
from pathlib import Path

from shoal.durable import write_text

NAME = "diverged.json"


def note(run: Path, round: int, why: str) -> None:
    """Write down that the run in this folder has diverged."""
    write_text(run / NAME, json.dumps({"round": round, "why": why}, indent=1) + "\n")


def diverged(run: Path) -> int | None:
    """The round that the run in this folder did not get past, if it has diverged."""
    file = run / NAME
    return int(json.loads(file.read_text())["round"]) if file.exists() else None


def why(run: Path) -> str:
    """What was written down."""
    return str(json.loads((run / NAME).read_text())["why"])


__all__ = ["NAME", "diverged", "note", "why"]
