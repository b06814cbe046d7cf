"""What a sweep shows while it runs: one bar over all rounds, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from shoal.sweep.events import Event

EVERY = 10.0  # seconds between plain lines


class SweepProgress:
    """Rounds of all runs together; runs that end are named."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._rounds: dict[str, tuple[int, int]] = {}  # of every run that began: played, in all
        self._ended = 0
        self._last = time.monotonic()
        self._console = Console(file=sys.stderr)
        self._bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
        )

    def __enter__(self) -> SweepProgress:
        if self._console.is_terminal:
            self._bar.add_task("rounds", total=None, text="starting")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, event: Event) -> None:
        """Something happened."""
        if event.rounds:
            self._rounds[event.run] = (event.round, event.rounds)
        self._ended += event.status is not None
        if self._console.is_terminal:
            self._advance(event)
        elif event.status is not None or time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            played = sum(done for done, _ in self._rounds.values())
            ended = f"  {event.run} {event.status}" if event.status else ""
            text = f"{self._ended}/{self._runs} runs, {played} rounds{ended}"
            print(text, file=sys.stderr, flush=True)

    def _advance(self, event: Event) -> None:
        known = [total for _, total in self._rounds.values()]
        # runs that have not begun are taken to be as long as the others
        total = round(sum(known) / len(known) * self._runs) if known else None
        played = sum(done for done, _ in self._rounds.values())
        text = f"{self._ended}/{self._runs} runs"
        self._bar.update(self._bar.task_ids[0], completed=played, total=total, text=text)
        if event.status in ("failed", "diverged"):
            self._bar.console.print(f"{event.run} failed: {event.text}", highlight=False)
