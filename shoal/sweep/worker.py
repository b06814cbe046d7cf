"""One worker's share of a sweep: a run, played to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.build import Plan, build
from shoal.config.config import Config
from shoal.data.sources import Dataset
from shoal.errors import UserError
from shoal.player import AbandonedError
from shoal.rundir import RunDir
from shoal.runner import Run
from shoal.sweep.data import data_key
from shoal.sweep.events import Event

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
        except (UserError, AbandonedError) as error:
            apart = isinstance(error, AbandonedError) and error.diverged
            self.tell(Event(name, status="diverged" if apart else "failed", text=str(error)))
        except Exception as error:
            # a mistake of ours or of a user's own part: one line, and the sweep goes on
            text = f"{type(error).__name__}: {error}"
            self.tell(Event(name, status="failed", text=text))

    def _opened(self, directory: Path, config: Config) -> Run:
        """The run of a directory where it left off, or a new one."""

        def planned(config: Config) -> Plan:
            key = data_key(config)
            return build(config, data=None if key is None else self.data.get(key))

        if RunDir(directory).is_run:
            return Run.resume(directory, planned=planned)
        return Run.create(directory, config, planned=planned)

    def _played(self, name: str, run: Run) -> None:
        """Play one run with its progress told."""

        def watch(record: dict[str, Any], rounds: int) -> None:
            self.tell(Event(name, record["round"] + 1, rounds, record["accuracy"]))

        run.play(watch)
        for note in run.player.notes:
            self.tell(Event(name, text=note))
        self.tell(Event(name, run.player.rounds, run.player.rounds, status="finished"))
