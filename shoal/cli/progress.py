"""What a run shows while it runs: a small live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live as Screen

from shoal.cli.live import Live
from shoal.rundir import RunDir

if TYPE_CHECKING:
    from shoal.worlds.base import World

QUIET = 2.0  # seconds before anything is shown
EVERY = 10.0  # seconds between plain lines
AGAIN = 0.12  # seconds between two drawings
COUNTED = 20_000  # members up to which comings and goings are counted


class Progress:
    """Shows where a run is, on stderr; nothing at all for a run of under two seconds."""

    def __init__(self, rounds: int, done: int = 0, world: World | None = None) -> None:
        self._world = world
        self._began = self._last = time.monotonic()
        self._console = Console(file=sys.stderr)
        self._screen: Screen | None = None
        self._live = Live(rounds, done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._screen is not None:
            self._draw()
            self._screen.stop()

    def show(self, record: dict[str, Any], rounds: int) -> None:
        """A round is over."""
        now = time.monotonic()
        self._live.add(record, now, self._moved(record))
        if now - self._began < QUIET:
            return
        if self._console.is_terminal:
            if now - self._last >= AGAIN:
                self._last = now
                self._draw()
        elif now - self._last >= EVERY or record["round"] + 1 == rounds:
            self._last = now
            print(self._live.plain(), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line above the live view."""
        if self._screen is not None:
            self._screen.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from shoal.summary import peak_memory_mb

        self._live.memory = peak_memory_mb()
        group = Group(*self._live.lines(self._console.width))
        if self._screen is None:
            self._screen = Screen(group, console=self._console, auto_refresh=False)
            self._screen.start()
        self._screen.update(group, refresh=True)

    def _moved(self, record: dict[str, Any]) -> tuple[int, int] | None:
        """How many came and left at a change of members; None where nobody did or it is dear."""
        shift = record["shift"]
        if self._world is None or shift is None or "members" not in shift["kinds"]:
            return None
        if not self._console.is_terminal or not record["round"] or record["active"] > COUNTED:
            return None
        now, before = (set(self._world.at(record["round"] - i).members) for i in (0, 1))
        return len(now - before), len(before - now)


def closing_line(where: RunDir) -> str:
    """A finished run in one line."""
    found = json.loads(where.summary.read_text(encoding="utf-8"))
    if found["final_accuracy"] is not None:
        end = f"accuracy {found['final_accuracy']:.4f} (mean {found['mean_accuracy']:.4f})"
    else:
        end = f"loss {found['final_loss']}"
    share = found.get("evaluation_share")
    looking = "" if share is None else f" ({share:.0%} of it evaluation)"
    spent = f"{found['seconds']:.1f} s{looking}, at most {found['peak_memory_mb']:.0f} MiB"
    return f"{where.path}: {found['rounds']} rounds, {end}, {spent}"
