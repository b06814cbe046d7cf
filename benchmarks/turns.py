"""Contestants that take turns, each in a process that stays alive from turn to turn.

A busy moment of the machine hits all alike, nobody profits from what another did to the allocator,
and what a process needs in memory, and for its first round, is its own. shoal can also come from
another checkout (``--old``): the benchmarks are these, and only the package is the other's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
# Before anything else is imported shoal is taken from its checkout, and all else from here.
BEGIN = (
    "import sys; here, shoal, told = sys.argv[1:]\n"
    "if shoal:\n"
    "    sys.path.insert(0, shoal); import shoal as package; sys.path.pop(0)\n"
    "    assert package.__file__.startswith(shoal), package.__file__\n"
    "sys.path.insert(0, here)\n"
    "if shoal: from benchmarks.old_places import open_old_places; open_old_places()\n"
    "from benchmarks.player import main; main(told)\n"
)
# What shoal tells the C library to do with freed memory, told to bare loops in another way: else
# they would lose some percent to page faults, which their author could have mended in one line.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


class EndedError(RuntimeError):
    """A contestant's process is no more; what it said is on standard error."""


class Spent(NamedTuple):
    """Seconds of a round."""

    processor: float
    wall: float


@dataclass(frozen=True)
class Seat:
    """Who plays what: ``player`` is shoal, plain or channels_last; threads None: as many as it
    likes. ``kept`` gives a bare loop shoal's way with freed memory."""

    name: str
    load: str
    player: str = "shoal"
    threads: int | None = 1
    rounds: int = 1000  # that can be played
    exact: bool = False  # in float64
    tiny: bool = False
    checkout: Path = ROOT
    kept: bool = True
    method: str = "fedavg"  # of shoal's catalog

    @property
    def command(self) -> list[str]:
        """Here, where shoal is (nowhere for a bare loop), and what to play."""
        told = {key: value for key, value in asdict(self).items() if key != "checkout"}
        shoal = str(self.checkout.resolve()) if self.player == "shoal" else ""
        return [
            sys.executable,
            "-W",
            "ignore",
            "-P",
            "-c",
            BEGIN,
            str(ROOT),
            shoal,
            json.dumps(told),
        ]

    @property
    def environment(self) -> dict[str, str]:
        kept = KEPT if self.kept and self.player != "shoal" else {}
        return {**os.environ, "OMP_NUM_THREADS": "1", **kept}


@dataclass
class Player:
    """A started contestant; ``spent`` has one entry a turn."""

    seat: Seat
    process: subprocess.Popen[str] = field(init=False)
    reached: int = 0
    spent: list[Spent] = field(default_factory=list)

    def __enter__(self) -> Player:
        self.process = subprocess.Popen(
            self.seat.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.seat.environment,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise EndedError(f"{self.seat.name} ended on {self.seat.load}; see above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def play(self, rounds: int) -> Spent:
        """The next rounds; seconds of each on average."""
        end = self.reached + rounds
        found = self._ask(do="play", first=self.reached, end=end)
        self.reached = end
        return Spent(found["processor"] / rounds, found["wall"] / rounds)

    def model(self) -> dict[str, Tensor]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.pt"
            self._ask(do="save", file=str(file))
            found: dict[str, Tensor] = torch.load(file)
        return found

    def peak(self) -> float:
        """MiB so far."""
        found: float = self._ask(do="peak")["peak"]
        return found


def seat_all(stack: ExitStack, seats: Sequence[Seat]) -> dict[str, Player]:
    """All of them started, by name; they end with the stack."""
    return {seat.name: stack.enter_context(Player(seat)) for seat in seats}


def take_turns(players: Sequence[Player], turns: int, rounds: int) -> None:
    """Everybody plays the same rounds, forwards and backwards through the table."""
    for turn in range(turns):
        for player in players if turn % 2 == 0 else reversed(players):
            player.spent.append(player.play(rounds))


def ratio(mine: Player, theirs: Player, what: str = "processor") -> float:
    """The median over the turns of one's time to the other's in the same turn."""
    pairs = zip(mine.spent, theirs.spent, strict=True)
    return statistics.median(getattr(a, what) / getattr(b, what) for a, b in pairs)


def median(player: Player, what: str = "processor") -> float:
    return statistics.median(getattr(spent, what) for spent in player.spent)


__all__ = ["EndedError", "Player", "Seat", "Spent", "median", "ratio", "seat_all", "take_turns"]
