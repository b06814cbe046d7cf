"""MLflow: a run of an experiment called ``shoal``."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shoal.loggers.scalars import MARKER
from shoal.loggers.sink import Source, flat
from shoal.rundir import write_text

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
