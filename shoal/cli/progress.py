"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere, on stderr."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shoal.rundir import RunDir

QUIET = 2.0  # seconds before anything is shown
EVERY = 10.0  # seconds between plain lines


class Progress:
    """Shows rounds a second and accuracy; nothing at all for a run of under two seconds."""

    def __init__(self, rounds: int, done: int = 0) -> None:
        self._rounds, self._done = rounds, done
        self._began = self._last = time.monotonic()
        self._console = Console(file=sys.stderr)
        self._bar: Bar | None = None
        self._accuracy = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, record: dict[str, Any], rounds: int) -> None:
        """A round is over."""
        now, number = time.monotonic(), record["round"] + 1
        if record["accuracy"] is not None:
            self._accuracy = f"accuracy {record['accuracy']:.4f}"
        if now - self._began < QUIET:
            return
        speed = f"{(number - self._done) / (now - self._began):.1f} rounds/s"
        if self._console.is_terminal:
            self._advance(number, speed)
        elif now - self._last >= EVERY or number == rounds:
            self._last = now
            text = f"round {number}/{rounds}  {speed}  {self._accuracy}"
            print(text.rstrip(), file=sys.stderr, flush=True)

    def _advance(self, number: int, speed: str) -> None:
        if self._bar is None:
            self._bar = Bar(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}  {task.fields[accuracy]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.add_task("rounds", total=self._rounds, speed="", accuracy="")
            self._bar.start()
        self._bar.update(
            self._bar.task_ids[0], completed=number, speed=speed, accuracy=self._accuracy
        )


def closing_line(where: RunDir) -> str:
    """A finished run in one line."""
    found = json.loads(where.summary.read_text(encoding="utf-8"))
    if found["final_accuracy"] is not None:
        end = f"accuracy {found['final_accuracy']:.4f} (mean {found['mean_accuracy']:.4f})"
    else:
        end = f"loss {found['final_loss']}"
    spent = f"{found['seconds']:.1f} s, at most {found['peak_memory_mb']:.0f} MiB"
    return f"{where.path}: {found['rounds']} rounds, {end}, {spent}"
