"""Weights & Biases, offline unless ``WANDB_MODE`` says otherwise."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shoal.loggers.sink import Source
from shoal.rundir import write_text


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
