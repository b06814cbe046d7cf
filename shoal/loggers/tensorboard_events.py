"""TensorBoard event files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shoal.loggers.scalars import MARKER
from shoal.loggers.sink import Source
from shoal.rundir import dump_yaml


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
