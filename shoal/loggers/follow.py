"""Loggers that follow one run, over kills and resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.config import load_run
from shoal.errors import UserError
from shoal.loggers.registry import NAMES, check, open_sink
from shoal.loggers.scalars import scalars
from shoal.loggers.sink import Sink, Source
from shoal.rundir import RunDir, write_text
from shoal.summary import read_rounds

Say = Callable[[str], None]


class _Follower:
    """One logger and the round it needs next."""

    def __init__(self, sink: Sink) -> None:
        self.sink, self.next = sink, sink.next_round()

    def take(self, record: Mapping[str, Any]) -> None:
        """A round that is known already was played again after a resume: the same figures."""
        if record["round"] >= self.next:
            self.sink.write(record["round"], scalars(record))
            self.next = record["round"] + 1


class Loggers:
    """The loggers of a run directory: those asked for now and those of earlier starts.

    A logger that fails (a full disk, a server that is away) is told of and left out; the run goes
    on, and what the logger lacks is made up for when the run is next resumed or exported.
    """

    def __init__(self, directory: Path, names: Iterable[str] = (), say: Say = print) -> None:
        where = RunDir(directory)
        self._say, self._where = say, where
        remembered = directory / "logs" / "loggers.json"
        wanted = check([*self._still_there(_remembered(remembered)), *names])
        self._followers: dict[str, _Follower] = {}
        if not wanted:
            return
        source = Source(where, load_run(where.config).complete())
        source.folder.mkdir(exist_ok=True)
        write_text(remembered, json.dumps({"format": 1, "names": wanted}) + "\n")
        for name in wanted:
            self._guarded(name, partial(self._open, name, source))

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *error: object) -> None:
        for name, follower in list(self._followers.items()):
            self._guarded(name, partial(follower.sink.close, self._where.finished))

    def show(self, record: Mapping[str, Any], rounds: int) -> None:
        """A round is over (what :meth:`shoal.runner.Run.play` calls)."""
        for name, follower in list(self._followers.items()):
            self._guarded(name, partial(follower.take, record))

    def _still_there(self, names: Iterable[str]) -> Iterator[str]:
        """Loggers of an earlier start, but for those whose package is not on this machine."""
        for name in names:
            try:
                yield from check([name])
            except UserError as error:
                self._say(f"{error}; going on without it")

    def _open(self, name: str, source: Source) -> None:
        follower = _Follower(open_sink(name, source))
        self._followers[name] = follower
        if self._where.rounds.exists():
            for record in read_rounds(self._where.rounds):
                follower.take(record)

    def _guarded(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._followers.pop(name, None)
            text = " ".join(str(error).split())
            self._say(f"logger {name} stopped ({type(error).__name__}: {text}); the run goes on")


def export(directory: Path, names: Iterable[str], say: Say = print) -> None:
    """Log the rounds that a run has so far, finished or not."""
    RunDir(directory).check_run()
    with Loggers(directory, names, say):
        pass


def _remembered(path: Path) -> list[str]:
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["names"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged; delete it, and name loggers with --log") from None
    return [name for name in names if name in NAMES]
