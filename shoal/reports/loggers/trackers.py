"""The four of them, their packages imported when opened."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.files import dump_yaml, write_text
from shoal.reports.loggers.follow import MARKER, Source, flat

# ---- csv file ------------------------------------------------------------------------------------
# One CSV file: a row per round, a column per figure.


class CsvFile:
    """``logs/rounds.csv``.

    A figure that appears late (a new task) gets a column of its own: the file is then written
    anew as a whole, with empty cells in the rows before.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.folder / "rounds.csv"
        self._columns = _mended(self.path)

    def next_round(self) -> int:
        rows = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return int(rows[-1].split(",", 1)[0]) + 1 if len(rows) > 1 else 0

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        new = [name for name in ("round", *figures) if name not in self._columns]
        if new:
            self._widen(new)
        row = {"round": round, **{name: format(value, ".12g") for name, value in figures.items()}}
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerow(row)
        with self.path.open("ab") as file:
            file.write(text.getvalue().encode("utf-8"))  # one write: a whole line, or a torn one

    def close(self, finished: bool) -> None:
        """Every row is in the file already."""

    def _widen(self, new: list[str]) -> None:
        rows: list[dict[str, str]] = []
        if self._columns:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self._columns = [*self._columns, *new]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())


def _mended(path: Path) -> list[str]:
    """The columns of a file, after a line that a kill tore is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return next(csv.reader(content[:whole].decode("utf-8").splitlines()), [])


# ---- tensorboard events --------------------------------------------------------------------------
# TensorBoard event files.


class TensorBoardEvents:
    """``logs/tensorboard``: one event a round holds all of its figures, so a kill tears none."""

    def __init__(self, source: Source) -> None:
        self.folder = source.folder / "tensorboard"
        self._source = source
        self._file: Any = None
        self._summary = import_module("torch.utils.tensorboard.summary")
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event

    def next_round(self) -> int:
        if not self.folder.exists():
            return 0
        reader = import_module("tensorboard.backend.event_processing.event_accumulator")
        found = reader.EventAccumulator(str(self.folder), {reader.SCALARS: 0})
        found.Reload()
        if MARKER not in found.Tags()[reader.SCALARS]:
            return 0
        return int(max(event.step for event in found.Scalars(MARKER))) + 1

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        if self._file is None:
            self._open(fresh=round == 0)
        event = self._event(step=round)
        for name, value in figures.items():
            event.summary.MergeFrom(self._summary.scalar(name, value))
        self._add(event)

    def close(self, finished: bool) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, fresh: bool) -> None:
        writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._file = writer.EventFileWriter(str(self.folder))
        if fresh:
            shown = "    " + dump_yaml(self._source.config).replace("\n", "\n    ")  # Markdown code
            self._add(self._event(summary=self._summary.text("config", shown)))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.add_event(event)
        self._file.flush()


# ---- mlflow store --------------------------------------------------------------------------------
# MLflow: a run of an experiment called ``shoal``.

BATCH = 1000  # metrics that MLflow takes at once
HOLD = 1.0  # seconds that rounds are held back, to be sent together
LONGEST = 500  # characters of a setting
PARAMS = 100  # settings that MLflow takes at once


class MlflowStore:
    """Where ``MLFLOW_TRACKING_URI`` points, else ``logs/mlflow.db`` in the run directory.

    Rounds are sent together once a second; what a kill loses is sent when the run is resumed,
    because the store itself is asked which round it has last.
    """

    def __init__(self, source: Source) -> None:
        self._note = source.folder / "mlflow.json"
        local = f"sqlite:///{(source.folder / 'mlflow.db').resolve()}"
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or local
        self._entities = import_module("mlflow.entities")
        self.client: Any = import_module("mlflow.tracking").MlflowClient(tracking_uri=self.uri)
        self._held: list[Any] = []
        self._sent_at = time.monotonic()
        self.run_id = self._begun() or self._begin(source)

    def next_round(self) -> int:
        history = self.client.get_metric_history(self.run_id, MARKER)
        return max((metric.step for metric in history), default=-1) + 1

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(_allowed(name), value, now, round)
            for name, value in figures.items()
            if name != MARKER
        ]
        # the marker comes last: a round is there once its marker is
        metrics.append(self._entities.Metric(MARKER, figures[MARKER], now, round))
        if len(self._held) + len(metrics) > BATCH:
            self._send()
        self._held += metrics
        if time.monotonic() - self._sent_at > HOLD:
            self._send()

    def close(self, finished: bool) -> None:
        self._send()
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")

    def _send(self) -> None:
        for start in range(0, len(self._held), BATCH):
            self.client.log_batch(self.run_id, metrics=self._held[start : start + BATCH])
        self._held = []
        self._sent_at = time.monotonic()

    def _begun(self) -> str | None:
        """The run that was begun earlier, if the store still has it."""
        if not self._note.exists():
            return None
        note = json.loads(self._note.read_text(encoding="utf-8"))
        if note["uri"] != self.uri:
            return None  # another store knows nothing of that run
        self.client.update_run(note["run_id"], status="RUNNING")
        return str(note["run_id"])

    def _begin(self, source: Source) -> str:
        known = self.client.get_experiment_by_name("shoal")
        experiment = known.experiment_id if known else self.client.create_experiment("shoal")
        run_id = str(self.client.create_run(experiment, run_name=source.name).info.run_id)
        params = [
            self._entities.Param(_allowed(key), str(value)[:LONGEST])
            for key, value in flat(source.config).items()
        ]
        for start in range(0, len(params), PARAMS):
            self.client.log_batch(run_id, params=params[start : start + PARAMS])
        write_text(self._note, json.dumps({"uri": self.uri, "run_id": run_id}) + "\n")
        return run_id


def _allowed(name: str) -> str:
    """A name that MLflow takes.

    >>> _allowed("tasks/digits (inverted)")
    'tasks/digits _inverted_'
    """
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


# ---- wandb run -----------------------------------------------------------------------------------
# Weights & Biases, offline unless ``WANDB_MODE`` says otherwise.


class WandbRun:
    """``logs/wandb``; every start of the run is a folder there, all with one id.

    An offline run cannot be asked what it has, so ``logs/wandb.json`` keeps the next round. The
    files are written by another process; if that is killed as well, the last rounds may be
    missing there (``rounds.jsonl`` has them).
    Upload with ``wandb sync --append RUN/logs/wandb/offline-run-*`` when you like.
    """

    def __init__(self, source: Source) -> None:
        self._note = source.folder / "wandb.json"
        note: dict[str, Any] = {"id": secrets.token_hex(8), "next": 0}
        if self._note.exists():
            note = json.loads(self._note.read_text(encoding="utf-8"))
        self._id, self._next = str(note["id"]), int(note["next"])
        self._source = source
        self._run: Any = None

    def next_round(self) -> int:
        return self._next

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        if self._run is None:
            self._open()
        self._run.log(dict(figures), step=round)
        self._next = round + 1
        # no fsync: a run is as fast with this logger as without
        text = json.dumps({"id": self._id, "next": self._next})
        new = self._note.with_name(f".{self._note.name}.new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self._note)

    def close(self, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)

    def _open(self) -> None:
        wandb = import_module("wandb")
        write_text(self._note, json.dumps({"id": self._id, "next": self._next}) + "\n")
        self._run = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            project=os.environ.get("WANDB_PROJECT", "shoal"),
            dir=str(self._source.folder),
            id=self._id,
            name=self._source.name,
            config=self._source.config,
            # offline runs have no server to ask, and "allow" would only print a warning
            resume=None if os.environ.get("WANDB_MODE", "offline") == "offline" else "allow",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                # figures of the machine are not ours to collect, and ask the network
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
            ),
        )
