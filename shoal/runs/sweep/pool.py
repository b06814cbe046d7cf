"""The caller's side: groups, events, outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from shoal.config.own_names import sources
from shoal.config.schema import Config
from shoal.config.subject import drawn_data
from shoal.core.errors import UserError
from shoal.core.files import check_writable, dump_json, write_text
from shoal.core.machine import cores
from shoal.core.own_code import imported_first, tell, told
from shoal.runs.cluster.connect import Cluster
from shoal.runs.directory import RunDir

# ---- events --------------------------------------------------------------------------------------
# What the processes of a sweep tell each other, one JSON object a line, and what comes of it.

Status = Literal["finished", "skipped", "failed", "diverged", "stopped"]


@dataclass(frozen=True)
class Event:
    """A run went on by a round, came to its end, or has something to say.

    ``status`` is None while the run plays. ``text`` is the sentence of a failure, or a note.
    """

    run: str
    round: int = 0  # rounds played so far
    rounds: int = 0
    accuracy: float | None = None
    status: Status | None = None
    text: str = ""

    def line(self) -> bytes:
        """One line, short enough to be written at once by several processes into one pipe.

        >>> Event("a", 3, 10).line()
        b'{"run": "a", "round": 3, "rounds": 10}\\n'
        """
        given = {k: v for k, v in asdict(self).items() if v not in ("", None)}
        given["text"] = self.text[:1500]
        return (json.dumps({k: v for k, v in given.items() if v != ""}) + "\n").encode()

    @classmethod
    def of(cls, line: bytes) -> Event:
        values: dict[str, Any] = json.loads(line)
        return cls(**values)


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended. ``text`` says why, where it did not finish."""

    status: Status
    text: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def fine(self) -> bool:
        """Whether the run's directory is finished."""
        return self.status in ("finished", "skipped")


# ---- data ----------------------------------------------------------------------------------------
# Which runs of a sweep read the same data, so that it is read once.


def data_key(config: Config) -> str | None:
    """Runs with the same key read the same data; None: a problem brings its own."""
    if config.problem is not None:
        return None
    domains = config.world.options.get("domains")
    return json.dumps([drawn_data(config), domains], sort_keys=True)


# ---- pool ----------------------------------------------------------------------------------------
# Plays many configs in worker processes; the caller's side.
#
# The workers belong to a process of their own (``manager``), which reads each data set once and
# forks a child for every run: no imports are repeated and the data are shared pages. Configs go
# there as JSON and events come back as lines, so a caller needs no ``__main__`` guard, and nothing
# of the caller's own state (threads, open files) gets into a run.

ASKED = "sweep.json"  # beside the runs: what each was asked to be


def play_all(
    configs: Mapping[str, Config],
    root: Path,
    workers: int = 0,
    *,
    watch: Callable[[Event], None] | None = None,
    seconds: float | None = None,
    remember: bool = True,
    on: Cluster | None = None,
) -> dict[str, Outcome]:
    """Play every config into ``root/name``, a normal run directory; finished ones are skipped.

    Parameters
    ----------
    configs: by name; a name is the run's directory inside ``root``.
    workers: processes at a time; 0 is one per core.
    watch: is told of every round and every end.
    seconds: after that many, runs stop at a checkpoint and others do not start.
    remember: note what each name stands for, and refuse another config under it later. Not needed
        where a name is made from its config.
    on: a Ray cluster, whose nodes play the runs; None: this machine.

    A run that was killed goes on from its checkpoint. A run that fails does not stop the others;
    its outcome says why. An interrupt stops all of them at a checkpoint and is raised again.
    """
    root = root.resolve()
    check_writable(root)
    _check_names(configs)
    # what was written and nothing else: some defaults depend on whether a key was given
    values = {n: c.model_dump(mode="json", exclude_unset=True) for n, c in configs.items()}
    outcomes = {name: Outcome("skipped") for name in values if RunDir(root / name).finished}
    if remember:
        _remember(root, values)
    todo = {name: value for name, value in values.items() if name not in outcomes}
    if todo:
        for name in todo:  # named here, so that no worker writes over the progress
            for source in sources(configs[name]).values():
                tell(source)
        order: dict[str, Any] = {
            "root": str(root),
            "runs": todo,
            "seconds": seconds,
            "path": [str(Path(folder).resolve()) for folder in sys.path],
            "told": told(),
            "imports": imported_first(),
        }
        order |= {"on": asdict(on)} if on else {"workers": workers or cores()}
        outcomes |= _supervise(order, watch or (lambda event: None))
    return {name: outcomes.get(name, Outcome("failed", "the worker died")) for name in configs}


def _supervise(order: dict[str, Any], watch: Callable[[Event], None]) -> dict[str, Outcome]:
    """Run the manager to its end and gather what it says."""
    owner = "on_ray" if "on" in order else "worker"
    command = [sys.executable, "-m", f"shoal.runs.sweep.{owner}"]
    # One thread per worker unless the manager says otherwise; set before torch starts anywhere.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    manager = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert manager.stdin is not None and manager.stdout is not None
    manager.stdin.write((json.dumps(order) + "\n").encode())
    manager.stdin.flush()
    outcomes: dict[str, Outcome] = {}
    notes: dict[str, list[str]] = {}
    try:
        for line in manager.stdout:
            event = Event.of(line)
            watch(event)
            if event.status is None and event.text:
                notes.setdefault(event.run, []).append(event.text)
            elif event.status is not None:
                told = tuple(notes.get(event.run, ()))
                outcomes[event.run] = Outcome(event.status, event.text, told)
    finally:
        # Closing its input tells the manager to stop what still runs, at a checkpoint.
        manager.stdin.close()
        manager.wait()
    return outcomes


def _check_names(configs: Mapping[str, Config]) -> None:
    for name in configs:
        if not name or name in (".", "..") or "/" in name or name.startswith("."):
            raise UserError(f"{name!r} cannot name a run's directory; leave out dots and slashes")


def _remember(root: Path, values: Mapping[str, Any]) -> None:
    """Write down what every run was asked to be; a run of that name from another config is refused.

    Where a directory has no such note (an earlier ``shoal run``), the run's own config decides
    when it is resumed.
    """
    path = root / ASKED
    known: dict[str, Any] = {}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
    values = json.loads(dump_json(values))
    for name, value in values.items():
        if RunDir(root / name).is_run and known.get(name, value) != value:
            old = known[name]
            changed = [k for k in {**old, **value} if old.get(k) != value.get(k)]
            raise UserError(
                f"{root / name} was made from another config ({', '.join(changed)} differ); "
                "give another directory or delete that run"
            )
    root.mkdir(parents=True, exist_ok=True)
    write_text(path, dump_json({**known, **values}, indent=1) + "\n")
