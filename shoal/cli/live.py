"""What a terminal shows of a running run: a few lines, made anew after a round."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from shoal.reports.names import shift_name

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
    accuracy: list[float] = field(default_factory=list)
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
        if record["accuracy"] is not None:
            self.accuracy.append(float(record["accuracy"]))
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
            parts.append(f"accuracy {self.accuracy[-1]:.4f}")
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
        head = f"accuracy {100 * self.accuracy[-1]:5.1f} %  "
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
