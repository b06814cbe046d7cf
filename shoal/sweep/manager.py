"""The process that owns a sweep's workers: ``python -m shoal.sweep.manager``.

Reads one line of JSON (what to play), then nothing but the end of its input, which means stop.
Writes events as lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.config.config import Config, from_mapping
from shoal.config.subject import dataset_of
from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.sweep.events import Event
from shoal.sweep.group import Group, data_key, grouped
from shoal.sweep.worker import Worker

POLL = 0.05  # seconds between two looks at the children


@dataclass
class Manager:
    """Forks a child for every group, at most ``workers`` at a time."""

    root: Path
    workers: int
    cores: int
    events: int  # the file descriptor that events go to
    data: dict[str, Dataset] = field(default_factory=dict)
    children: dict[int, Group] = field(default_factory=dict)

    def tell(self, event: Event) -> None:
        os.write(self.events, event.line())

    def play(self, runs: dict[str, Config], stack: bool) -> None:
        """Everything, or as much as there is before the input ends."""
        waiting = list(reversed(grouped(self._readable(runs), self.data, stack)))
        threads = max(1, self.cores // max(1, min(self.workers, len(waiting))))
        while waiting or self.children:
            while waiting and len(self.children) < self.workers:
                self._fork(waiting.pop(), threads)
            self._reap()
            if select.select([sys.stdin.fileno()], [], [], POLL)[0]:
                self._stop(waiting)
                return

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

    def _fork(self, group: Group, threads: int) -> None:
        child = os.fork()
        if child:
            self.children[child] = group
            return
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            Worker(self.root, self.data, threads, self.tell).play(group)
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
                self._ended(self.children.pop(child), status)

    def _ended(self, group: Group, status: int) -> None:
        if os.WIFSIGNALED(status):
            text = f"its process was killed by {signal.Signals(os.WTERMSIG(status)).name}"
            for name in group.runs:
                self.tell(Event(name, status="failed", text=f"{text}; start the sweep again"))

    def _stop(self, waiting: list[Group]) -> None:
        for child in self.children:
            os.kill(child, signal.SIGINT)
        for child in self.children:
            os.waitpid(child, 0)
        for group in waiting:
            for name in group.runs:
                self.tell(Event(name, status="stopped", text="never started"))


def main() -> None:
    # Children write to a copy of stdout, and whatever else prints goes to stderr.
    events = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # An interrupt at the keyboard reaches everybody: children make a checkpoint, we wait for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # threads do not survive a fork, so none may start here
    order: dict[str, Any] = json.loads(_first_line())
    runs = {name: from_mapping(values) for name, values in order["runs"].items()}
    manager = Manager(Path(order["root"]), order["workers"], order["cores"], events)
    manager.play(runs, order["stack"])


def _first_line() -> bytes:
    """Without a buffer, which would hide the end of the input from ``select``."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65_536)
        if not piece:
            raise SystemExit("shoal.sweep.manager is started by shoal.sweep, with an order")
        line += piece
    return line


if __name__ == "__main__":
    main()
