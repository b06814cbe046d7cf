"""What a terminal shows while something runs."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from shoal.metrics.figures import headline, score_of
from shoal.reports.findings import shift_name
from shoal.runs.directory import RunDir
from shoal.runs.sweep.pool import Event

if TYPE_CHECKING:
    from shoal.core.world_protocol import World


# ---- live ----------------------------------------------------------------------------------------
# What a terminal shows of a running run: a few lines, made anew after a round.

BARS = "▁▂▃▄▅▆▇█"
RECENT = 30  # rounds that the speed is taken from
NARROW = 60  # columns below which the bar is left out
ALERTS = 2  # shifts that stay in view
Record = dict[str, Any]


@dataclass
class Live:
    """The state of the view; ``add`` takes a round, ``lines`` draws it at a width."""

    rounds: int
    done: int = 0
    score: str = "accuracy"
    accuracy: list[float] = field(default_factory=list)  # or what the run is judged by
    alerts: deque[str] = field(default_factory=lambda: deque(maxlen=ALERTS))
    members: str = ""
    moved: str = ""  # at the last change of members
    memory: float | None = None
    rejected: int = 0
    _times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, record: Record, now: float, moved: tuple[int, int] | None = None) -> None:
        """A round is over at ``now``; ``moved`` is how many came and left, where that is known."""
        self.done = record["round"] + 1
        self._times.append((now, self.done))
        self.score = record.get("score", self.score)
        if (value := score_of(record)) is not None:
            self.accuracy.append(float(value))
        self.rejected += len(record["rejected"])
        self.members = f"{record['active']:,} members here"
        if moved is not None:
            self.moved = f"+{moved[0]:,} came  −{moved[1]:,} left"
        if record["shift"] is not None:
            self.alerts.append(f"round {record['round']}: {shift_name(record['shift'])}")
        if record.get("noticed"):
            self.alerts.append(f"round {record['round']}: a detector noticed a shift")

    @property
    def speed(self) -> float | None:
        """Rounds a second over the last rounds."""
        if len(self._times) < 2:
            return None
        (began, first), (ended, last) = self._times[0], self._times[-1]
        return (last - first) / (ended - began) if ended > began else None

    @property
    def left(self) -> float | None:
        """Seconds, if it goes on like this."""
        return (self.rounds - self.done) / self.speed if self.speed else None

    def lines(self, width: int) -> list[Text]:
        """At most five lines, none longer than the terminal is wide."""
        made = [self._first(width), self._second(width), self._third()]
        made += [Text(f"! {alert}", style="yellow") for alert in self.alerts]
        for line in made:
            line.truncate(max(1, width - 1), overflow="ellipsis")
        return made

    def plain(self) -> str:
        """The same in one line, for a file or a pipe."""
        parts = [f"round {self.done}/{self.rounds}"]
        if self.speed is not None:
            parts.append(f"{self.speed:.1f} rounds/s")
        if self.accuracy:
            parts.append(f"{self.score} {self.accuracy[-1]:.4f}")
        parts += [self.members, *self._time_left()]
        return "  ".join(parts)

    def _first(self, width: int) -> Text:
        line = Text(f"round {self.done}/{self.rounds}", style="bold")
        if width >= NARROW:
            full = round(24 * self.done / max(1, self.rounds))
            line.append("  " + "━" * full, style="cyan").append("━" * (24 - full), style="dim")
        rest = [] if self.speed is None else [f"{self.speed:.1f} rounds/s"]
        rest += self._time_left()
        if self.memory is not None:
            rest.append(f"{self.memory:,.0f} MiB")
        for item in rest:
            if line.cell_len + 2 + len(item) < width:
                line.append(f"  {item}", style="not bold")
        return line

    def _second(self, width: int) -> Text:
        if not self.accuracy:
            return Text("accuracy not measured yet", style="dim")
        head = f"{self.score} {100 * self.accuracy[-1]:5.1f} %  "
        tail = f"  best {100 * max(self.accuracy):.1f}"
        room = max(4, min(48, width - 2 - len(head) - len(tail)))
        line = Text(head, style="bold").append(sparkline(self.accuracy, room), style="cyan")
        return line.append(tail, style="not bold")

    def _third(self) -> Text:
        parts = [self.members]
        if self.moved:
            parts.append(self.moved)
        if self.rejected:
            parts.append(f"{self.rejected:,} upload{'s' * (self.rejected > 1)} rejected")
        return Text("  ".join(parts))

    def _time_left(self) -> list[str]:
        return [] if self.left is None else [f"{clock(self.left)} left"]


def sparkline(values: Sequence[float], width: int) -> str:
    """Accuracies from 0 to 1 in ``width`` signs at most; a sign is the lowest of its rounds, so
    that no low is lost.

    >>> sparkline([0.0, 0.5, 1.0, 0.1], 2), sparkline([0.0, 1.0], 10)
    ('▁▁', '▁█')
    """
    if len(values) > width:
        count = len(values)
        values = [min(values[i * count // width : (i + 1) * count // width]) for i in range(width)]
    return "".join(BARS[min(7, max(0, int(8 * v)))] for v in values)


def clock(seconds: float) -> str:
    """``1:05``, ``2:03:00``.

    >>> clock(65.2), clock(7380)
    ('1:05', '2:03:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- progress ------------------------------------------------------------------------------------
# What a run shows while it runs: a small live view on a terminal, plain lines elsewhere.

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
        from shoal.runs.summary import peak_memory_mb

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
    final, mean = headline(found, "final"), headline(found, "mean")
    if final is not None and mean is not None:
        end = f"{found.get('score', 'accuracy')} {final:.4f} (mean {mean:.4f})"
    else:
        end = f"loss {found['final_loss']}"
    share = found.get("evaluation_share")
    looking = "" if share is None else f" ({share:.0%} of it evaluation)"
    spent = f"{found['seconds']:.1f} s{looking}, at most {found['peak_memory_mb']:.0f} MiB"
    return f"{where.path}: {found['rounds']} rounds, {end}, {spent}"


# ---- sweep progress ------------------------------------------------------------------------------
# What a sweep shows while it runs: one bar over all rounds, or plain lines without a terminal.


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
