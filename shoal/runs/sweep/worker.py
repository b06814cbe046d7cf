"""The process that owns workers, and what one does."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.config.build import RunPlan, build
from shoal.config.schema import Config, from_mapping
from shoal.config.subject import dataset_of
from shoal.core.errors import UserError
from shoal.core.machine import keep_to
from shoal.core.own_code import adopt
from shoal.data.sources import Dataset
from shoal.runs.directory import RunDir
from shoal.runs.player import RoundFailedError
from shoal.runs.run import DurableRun
from shoal.runs.sweep.pool import Event, data_key

# ---- worker --------------------------------------------------------------------------------------
# One worker's share of a sweep: a run, played to the end.

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Worker:
    """What every run of a sweep is given: the folder, the data, somebody to tell."""

    root: Path
    data: Mapping[str, Dataset]
    tell: Tell

    def play(self, name: str, config: Config) -> None:
        """Play a run; what goes wrong becomes its outcome."""
        try:
            self._played(name, self._opened(self.root / name, config))
        except KeyboardInterrupt:
            self.tell(Event(name, status="stopped", text="interrupted"))
            raise
        except (UserError, RoundFailedError) as error:
            apart = isinstance(error, RoundFailedError) and error.diverged
            self.tell(Event(name, status="diverged" if apart else "failed", text=str(error)))
        except Exception as error:
            # a mistake of ours or of a user's own part: one line, and the sweep goes on
            text = f"{type(error).__name__}: {error}"
            self.tell(Event(name, status="failed", text=text))

    def _opened(self, directory: Path, config: Config) -> DurableRun:
        """The run of a directory where it left off, or a new one."""

        def planned(config: Config) -> RunPlan:
            key = data_key(config)
            return build(config, data=None if key is None else self.data.get(key))

        if RunDir(directory).is_run:
            return DurableRun.resume(directory, planned=planned)
        return DurableRun.create(directory, config, planned=planned)

    def _played(self, name: str, run: DurableRun) -> None:
        """Play one run with its progress told."""

        def watch(record: dict[str, Any], rounds: int) -> None:
            self.tell(Event(name, record["round"] + 1, rounds, record["accuracy"]))

        run.play(watch)
        for note in run.player.notes:
            self.tell(Event(name, text=note))
        self.tell(Event(name, run.player.rounds, run.player.rounds, status="finished"))


# ---- manager -------------------------------------------------------------------------------------
# The process that owns a sweep's workers: ``python -m shoal.runs.sweep.worker``.
#
# Reads one line of JSON (what to play), then nothing but the end of its input, which means stop.
# Writes events as lines of JSON.

POLL = 0.05  # seconds between two looks at the children


@dataclass
class Manager:
    """Forks a child for every run, at most ``workers`` at a time."""

    root: Path
    workers: int
    events: int  # the file descriptor that events go to
    data: dict[str, Dataset] = field(default_factory=dict)
    children: dict[int, tuple[str, int]] = field(default_factory=dict)  # run and slot by process

    def tell(self, event: Event) -> None:
        os.write(self.events, event.line())

    def play(self, runs: dict[str, Config], seconds: float | None = None) -> None:
        """Everything, or as much as there is before the input ends or the time is over."""
        until = None if seconds is None else time.monotonic() + seconds
        waiting = list(reversed(self._readable(runs).items()))
        slots = max(1, min(self.workers, len(waiting)))
        while waiting or self.children:
            over = until is not None and time.monotonic() >= until
            if over or select.select([sys.stdin.fileno()], [], [], 0.0)[0]:
                self._stop([name for name, _ in waiting])
                return
            while waiting and len(self.children) < slots:
                self._fork(*waiting.pop(), slots)
            self._reap()
            select.select([sys.stdin.fileno()], [], [], POLL)

    def _readable(self, runs: dict[str, Config]) -> dict[str, Config]:
        """Read every data set once; runs whose data cannot be had have failed."""
        fine, refused = {}, dict[str, str]()
        for name, config in runs.items():
            key = data_key(config)
            if key is not None and key not in self.data and key not in refused:
                try:
                    self.data[key] = dataset_of(config)
                except UserError as error:
                    refused[key] = str(error)
            if key in refused:
                self.tell(Event(name, status="failed", text=refused[key]))
            else:
                fine[name] = config
        return fine

    def _fork(self, name: str, config: Config, slots: int) -> None:
        """A child that keeps to a share of the cores, which nobody else uses meanwhile."""
        taken = {slot for _, slot in self.children.values()}
        slot = next(slot for slot in range(slots) if slot not in taken)
        child = os.fork()
        if child:
            self.children[child] = (name, slot)
            return
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            keep_to(slot, slots)
            Worker(self.root, self.data, self.tell).play(name, config)
            code = 0
        except KeyboardInterrupt:
            pass
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """A child that died without a word takes nobody with it."""
        for child in list(self.children):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                self._ended(self.children.pop(child)[0], status)

    def _ended(self, name: str, status: int) -> None:
        if os.WIFSIGNALED(status):
            text = f"its process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
            self.tell(Event(name, status="failed", text=f"{text}; start the sweep again"))

    def _stop(self, waiting: list[str]) -> None:
        for child in self.children:
            os.kill(child, signal.SIGINT)
        for child in self.children:
            os.waitpid(child, 0)
        for name in waiting:
            self.tell(Event(name, status="stopped", text="never started"))


def main() -> None:
    # Children write to a copy of stdout, and whatever else prints goes to stderr.
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # An interrupt at the keyboard reaches everybody: children make a checkpoint, we wait for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # threads do not survive a fork, so none may start here
    order: dict[str, Any] = json.loads(first_line())
    adopt(order["path"], order["told"], order["imports"])
    runs = {name: from_mapping(values) for name, values in order["runs"].items()}
    manager = Manager(Path(order["root"]), order["workers"], events)
    manager.play(runs, order["seconds"])


def first_line() -> bytes:
    """Without a buffer, which would hide the end of the input from ``select``."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65_536)
        if not piece:
            raise SystemExit("this module is started by shoal.runs.sweep, with an order")
        line += piece
    return line


if __name__ == "__main__":
    main()
