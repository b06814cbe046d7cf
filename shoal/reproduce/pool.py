"""Plays configs into run directories, one process a core; data is read once and shared by fork.

The one thing the rest needs is :func:`play_all`, so that another way to run can stand in for it.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from shoal.config.build import Plan, build
from shoal.config.config import Config
from shoal.config.subject import dataset_of, drawn_data
from shoal.cores import cores, keep_to
from shoal.data.sources import Dataset
from shoal.diverged import diverged
from shoal.errors import UserError
from shoal.rundir import RunDir


@dataclass(frozen=True)
class Task:
    """A config and where it is played."""

    path: Path
    config: Config


@dataclass(frozen=True)
class Outcome:
    """How a task ended: ``finished``, ``stopped`` (out of time), ``diverged`` or ``failed``, and
    why."""

    path: Path
    ended: str
    seconds: float
    why: str = ""


class OutOfTimeError(KeyboardInterrupt):
    """Stops a run between rounds the way Ctrl-C does, with a checkpoint."""


_shared: dict[str, Dataset] = {}  # what the parent has read, by the config's data; forks see it


def play_all(
    tasks: Iterable[Task], workers: int = 0, until: float | None = None
) -> Iterator[Outcome]:
    """Play every task, as processes are free, and tell how each ended; ``until`` is a time of
    :func:`time.monotonic` after which rounds are not begun. Tasks with the same data stay together.
    """
    keyed = sorted(((_key(t.config), t) for t in tasks), key=lambda pair: pair[0])
    for key, pairs in groupby(keyed, key=lambda pair: pair[0]):
        group = [task for _, task in pairs]
        if until is not None and time.monotonic() >= until:
            yield from (Outcome(t.path, "stopped", 0.0) for t in group)
            continue
        yield from _with_data(key, group, workers or cores(), until)


def _with_data(
    key: str, tasks: Sequence[Task], workers: int, until: float | None
) -> Iterator[Outcome]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process that has used several threads cannot be forked safely
    config = tasks[0].config
    try:
        if config.problem is None:
            _shared[key] = dataset_of(config)
        yield from _in_pool(tasks, min(workers, len(tasks)), until)
    except UserError as error:
        yield from (Outcome(t.path, "failed", 0.0, str(error)) for t in tasks)
    finally:
        _shared.pop(key, None)
        torch.set_num_threads(threads)


def _in_pool(tasks: Sequence[Task], workers: int, until: float | None) -> Iterator[Outcome]:
    if workers == 1 or sys.platform == "win32":
        yield from (play(task, until) for task in tasks)
        return
    forked = multiprocessing.get_context("fork")
    begun = forked.Value("i", 0)
    with ProcessPoolExecutor(workers, forked, _begin, (begun, workers)) as pool:
        running: dict[Future[Outcome], Task] = {pool.submit(play, t, until): t for t in tasks}
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield _outcome(future, running.pop(future))
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise


def _outcome(future: Future[Outcome], task: Task) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome(task.path, "stopped", 0.0, "its process was killed")


def _begin(begun: Synchronized[int], workers: int) -> None:
    """A worker of its own: as many threads as its cores, and Ctrl-C as everywhere."""
    import torch

    torch.set_num_threads(1)
    with begun.get_lock():
        number, begun.value = begun.value, begun.value + 1
    keep_to(number, workers)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def play(task: Task, until: float | None = None) -> Outcome:
    """Finish one run: from the start, or from where its directory was left."""
    from shoal.player import AbandonedError
    from shoal.runner import Run

    began = time.monotonic()
    where = RunDir(task.path)

    def watch(record: dict[str, Any], rounds: int) -> None:
        if until is not None and time.monotonic() >= until and record["round"] + 1 < rounds:
            raise OutOfTimeError

    def ended(how: str, why: str = "") -> Outcome:
        return Outcome(task.path, how, time.monotonic() - began, why)

    if where.finished:
        return ended("finished")
    if diverged(task.path) is not None:
        return ended("diverged")
    try:
        if where.is_run:
            run = Run.resume(task.path, planned=_planned)
        else:
            run = Run.create(task.path, task.config, planned=_planned)
        run.play(watch)
    except OutOfTimeError:
        return ended("stopped")
    except AbandonedError as error:
        return ended("diverged" if error.diverged else "failed", str(error))
    except UserError as error:
        return ended("failed", str(error))
    except Exception as error:  # one run that breaks must not end the others
        return ended("failed", f"{type(error).__name__}: {error}")
    return ended("finished")


def _planned(config: Config) -> Plan:
    """The plan of a config, on the data that the parent has read."""
    data = _shared.get(_key(config)) if config.device in ("auto", "cpu") else None
    return build(config, data=data)


def _key(config: Config) -> str:
    """The config's data in one order of keys."""
    values = [] if config.problem is not None else drawn_data(config)
    return json.dumps(values, sort_keys=True)
