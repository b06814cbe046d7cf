"""Loggers that follow a run over kills and resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shoal.config import load_run
from shoal.core.errors import UserError, suggestion
from shoal.core.files import write_text
from shoal.runs.directory import RunDir
from shoal.runs.records import read_rounds

# ---- scalars -------------------------------------------------------------------------------------
# The numbers of a round's record, under flat names.

MARKER = "active"  # a figure that every round has
COUNTED = ("cohort", "rejected")  # lists of which the length is told


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a record; what was not measured in this round is left out.

    ``shift`` is 1 in a round that begins with a change, else 0; nested names are joined by ``/``.

    >>> scalars({"round": 3, "active": 5, "shift": None, "cohort": [1, 2], "loss": None,
    ...          "tasks": {"task 0": 0.5}, "session_weights": [0.25, 0.75]})
    {'active': 5.0, 'shift': 0.0, 'cohort': 2.0, 'tasks/task 0': 0.5, 'session_weights/0': 0.25, \
'session_weights/1': 0.75}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if key == "shift":
            found[key] = float(value is not None)
        elif key in COUNTED:
            found[key] = float(len(value))
        elif key != "round":
            _add(found, key, value)
    return found


def _add(found: dict[str, float], name: str, value: Any) -> None:
    if isinstance(value, bool | int | float):
        found[name] = float(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(found, f"{name}/{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _add(found, f"{name}/{index}", item)


# ---- sink ----------------------------------------------------------------------------------------
# What a logger is.


class Sink(Protocol):
    """Takes rounds in order, each once."""

    def next_round(self) -> int:
        """The round after the last one that is safely kept; asked once, before anything else."""
        ...

    def write(self, round: int, figures: Mapping[str, float]) -> None: ...

    def close(self, finished: bool) -> None:
        """Keep what is still held back; ``finished``: the run will play no further round."""
        ...


@dataclass(frozen=True)
class Source:
    """The run that is logged."""

    where: RunDir
    config: dict[str, Any]  # complete and resolved, as in config.yaml

    @property
    def name(self) -> str:
        return self.where.path.resolve().name

    @property
    def folder(self) -> Path:
        """Where loggers keep what is theirs."""
        return self.where.path / "logs"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots, as trackers show settings.

    >>> flat({"seed": 1, "local": {"lr": 0.1}})
    {'seed': 1, 'local.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


# ---- registry ------------------------------------------------------------------------------------
# The loggers by name, and what each needs.


class _Entry(NamedTuple):
    module: str
    sink: str
    needs: tuple[str, ...]  # modules that must be there


_ENTRIES = {
    "csv": _Entry("trackers", "CsvFile", ()),
    "tensorboard": _Entry("trackers", "TensorBoardEvents", ("tensorboard",)),
    "mlflow": _Entry("trackers", "MlflowStore", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": _Entry("trackers", "WandbRun", ("wandb",)),
}
NAMES = tuple(_ENTRIES)


def check(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; an unknown name or a missing package is one sentence.

    >>> check(["csv", "csv"])
    ('csv',)
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in _ENTRIES:
            raise UserError(f"logger {name!r} is not known; {suggestion(name, NAMES)}")
        missing = [module for module in _ENTRIES[name].needs if find_spec(module) is None]
        if missing:
            raise UserError(
                f"logger {name!r} needs {' and '.join(missing)}, which is not installed; "
                f"get it with: pip install 'shoal[{name}]'"
            )
    return wanted


def open_sink(name: str, source: Source) -> Sink:
    """A logger on a run; its package is imported here, not before."""
    entry = _ENTRIES[name]
    make: Callable[[Source], Sink] = getattr(
        import_module(f"shoal.reports.loggers.{entry.module}"), entry.sink
    )
    return make(source)


# ---- follow --------------------------------------------------------------------------------------
# Loggers that follow one run, over kills and resumes.

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
        """A round is over (what :meth:`shoal.runs.run.DurableRun.play` calls)."""
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
