"""One worker's share of a sweep: a group of runs, played to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition, Lock, Thread
from threading import Event as Flag
from typing import Any

from shoal.config.build import Plan, build
from shoal.config.config import Config
from shoal.config.method import build as build_method
from shoal.data.sources import Dataset
from shoal.engines.base import Engine
from shoal.engines.kept_traces import compiled_for
from shoal.engines.together import Table
from shoal.engines.turns import Turns
from shoal.engines.vectorized import Vectorized
from shoal.errors import UserError
from shoal.local import Program
from shoal.player import AbandonedError
from shoal.rundir import RunDir
from shoal.runner import Run
from shoal.sweep.events import Event
from shoal.sweep.group import Group, data_key

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Worker:
    """What every run of a sweep is given: the folder, the data, some cores, somebody to tell."""

    root: Path
    data: Mapping[str, Dataset]
    threads: int
    tell: Tell

    def play(self, group: Group) -> None:
        """Play the runs of a group; a run that fails says so and leaves the others alone."""
        runs: dict[str, Run] = {}
        program: Program | None = None
        for name, config in group.runs.items():
            with self._told(name):
                runs[name] = self._opened(self.root / name, config, program)
                program = program or runs[name].player.settings.program
        if len(runs) > 1 and all(_vectorized(run) for run in runs.values()):
            self._play_in_turns(runs) if _quick_alone(program) else self._play_together(runs)
            return
        for name, run in runs.items():
            if _vectorized(run):
                run.player.engine = Vectorized(threads=self.threads)
            with self._told(name):
                self._played(name, run)

    def _play_in_turns(self, runs: Mapping[str, Run]) -> None:
        """What one run does alone while the clients of another train."""
        engine = Turns(self.threads)
        try:
            self._play_seated(runs, [engine.seat() for _ in runs], engine.baton)
        finally:
            engine.close()

    def _play_together(self, runs: Mapping[str, Run]) -> None:
        """In lock-step, so that clients of all runs step together."""
        engine = Vectorized(threads=self.threads)
        table = Table(engine, len(runs))
        try:
            self._play_seated(
                runs, [table.seat(number) for number in range(len(runs))], table.baton
            )
        finally:
            engine.close()

    def _play_seated(
        self, runs: Mapping[str, Run], seats: Sequence[Engine], baton: Lock | Condition
    ) -> None:
        """One thread a run; an interrupt stops them all after their round."""
        stop = Flag()

        def seated(seat: Engine, name: str, run: Run) -> None:
            run.player.engine = seat
            with baton, self._told(name, stop):
                try:
                    self._played(name, run, stop)
                finally:
                    seat.close()

        threads = [
            Thread(target=seated, args=(seat, name, run))
            for seat, (name, run) in zip(seats, runs.items(), strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            stop.set()
            for thread in threads:
                thread.join()
            raise

    def _opened(self, directory: Path, config: Config, program: Program | None) -> Run:
        """The run of a directory where it left off, or a new one; it takes a program that fits."""

        def planned(config: Config) -> Plan:
            key = data_key(config)
            plan = build(config, data=None if key is None else self.data.get(key))
            if program is None or not _same(program, plan.settings.program):
                return plan
            return replace(plan, settings=replace(plan.settings, program=program))

        if RunDir(directory).is_run:
            return Run.resume(directory, planned=planned)
        return Run.create(directory, _with_engine(config), planned=planned)

    def _played(self, name: str, run: Run, stop: Flag | None = None) -> None:
        """Play one run with its progress told; ``stop`` ends it after a round, at a checkpoint."""

        def watch(record: dict[str, Any], rounds: int) -> None:
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            self.tell(Event(name, record["round"] + 1, rounds, record["accuracy"]))

        run.play(watch)
        for note in getattr(run.player.engine, "notes", ()):
            self.tell(Event(name, text=note))
        self.tell(Event(name, run.player.rounds, run.player.rounds, status="finished"))

    def _told(self, name: str, stop: Flag | None = None) -> Told:
        return Told(name, self.tell, stop is not None)


@dataclass(frozen=True)
class Told:
    """What goes wrong inside becomes the run's outcome; an interrupt goes on, but for a thread."""

    run: str
    tell: Tell
    in_thread: bool = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        if error is None:
            return False
        if isinstance(error, KeyboardInterrupt):
            self.tell(Event(self.run, status="stopped", text="interrupted"))
            return self.in_thread
        text = str(error)
        apart = isinstance(error, AbandonedError) and error.diverged
        if not isinstance(error, UserError | AbandonedError):
            # a mistake of ours or of a user's own part: one line, and the rest of the sweep goes on
            text = f"{type(error).__name__}: {error}"
        self.tell(Event(self.run, status="diverged" if apart else "failed", text=text))
        return isinstance(error, Exception)


def _vectorized(run: Run) -> bool:
    return isinstance(run.player.engine, Vectorized)


def _same(a: Program, b: Program) -> bool:
    """Whether two programs do the same to a vector: their configs differ in the seed only."""
    return (a.method, a.optimizer, a.task) == (b.method, b.optimizer, b.task)


def _with_engine(config: Config) -> Config:
    """Cores are shared by runs here, so ``auto`` only asks whether clients can be stacked."""
    if config.engine != "auto":
        return config
    name = "loop" if build_method(config.method).eager_reason else "vectorized"
    return config.model_copy(update={"engine": name})


def _quick_alone(program: Program | None) -> bool:
    """Plain methods: a chunk of one run takes a shorter way than one of several runs, so that
    stacking costs more than it saves (``make bench-seeds``); they take turns instead."""
    return program is not None and compiled_for(program).plain
