"""Names inside a run directory, and the note of a diverged run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shoal.core import files
from shoal.core.errors import UserError
from shoal.core.files import (
    check_writable,
    dump_json,
    dump_yaml,
    private_folder,
    sync_directory,
    write_text,
)

# ---- rundir --------------------------------------------------------------------------------------
# Names inside a run directory, and what is written there as text.


@dataclass(frozen=True)
class RunDir:
    """Where a run keeps what."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def world(self) -> Path:
        return self.path / "world.json"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def clients(self) -> Path:
        return self.path / "clients.parquet"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def best(self) -> Path:
        """The model of the best round, where ``keep_best`` asks for it."""
        return self.path / "best.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def lock(self) -> Path:
        """Held by the process that writes here."""
        return self.checkpoint / "lock"

    @property
    def origin(self) -> Path:
        """Digests of what the run was started with (:mod:`shoal.runs.origin`)."""
        return self.path / "origin.json"

    @property
    def is_run(self) -> bool:
        return self.config.exists() and self.world.exists()

    def check_run(self) -> None:
        if not self.is_run:
            raise UserError(
                f"{self.path} is no run directory (it needs a config.yaml and a world.json)"
            )

    @property
    def is_real(self) -> bool:
        """Whether a real federation's server writes here."""
        return (self.path / "federation.yaml").exists()

    def check_simulated(self) -> None:
        if self.is_real:
            raise UserError(
                f"{self.path} is the run of a real federation, which only its server goes on with: "
                f"shoal flower resume {self.path.parent}"
            )

    @property
    def finished(self) -> bool:
        """``summary.json`` is the last file of a run."""
        return self.summary.exists()

    @property
    def stopped(self) -> str | None:
        """Why a finished run stopped before its last round; None if it did not."""
        if not self.finished:
            return None
        told = json.loads(self.summary.read_text(encoding="utf-8")).get("stopped")
        return None if told is None else str(told)

    def check_free(self, force: bool) -> None:
        """Refuse to write over anything but, if forced, an earlier run; and where nobody can."""
        check_writable(self.path)
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path} is a file; give a directory that does not exist yet")
        if not any(self.path.iterdir()):
            return
        if not force:
            raise UserError(
                f"{self.path} exists; give another directory, or --force to replace it, or "
                f"continue it with: shoal resume {self.path}"
            )
        if not self.is_run:
            raise UserError(f"{self.path} is no run directory, so --force does not replace it")
        self.check_simulated()
        self._check_unused()

    def create(
        self,
        config: Mapping[str, Any],
        world: Mapping[str, Any],
        force: bool,
        origin: Mapping[str, Any] | None = None,
    ) -> IO[str]:
        """The directory with ``config.yaml`` and ``world.json``: all of it, or nothing.

        Returns its lock, which the caller holds as long as it writes there.
        """
        self.check_free(force)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.parent / f".{self.path.name}.new"
        old = self.path.parent / f".{self.path.name}.old"
        for leftover in (staged, old):
            shutil.rmtree(leftover, ignore_errors=True)
        made = RunDir(staged)
        try:
            private_folder(made.path)
            made.checkpoint.mkdir()
            held = files.hold(made.lock, self.path)
            write_text(made.config, dump_yaml(config))
            write_text(made.world, dump_json(world) + "\n")
            if origin is not None:
                write_text(made.origin, dump_json(origin, indent=1) + "\n")
            if self.path.exists() and any(self.path.iterdir()):
                self._check_unused()
                os.rename(self.path, old)
            os.rename(staged, self.path)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        sync_directory(self.path.parent)
        shutil.rmtree(old, ignore_errors=True)
        return held

    def _check_unused(self) -> None:
        """Refuse while another process writes here."""
        files.check_free(self.lock, self.path)


# ---- diverged ------------------------------------------------------------------------------------
# Runs that have diverged: uploads or the loss are not finite, or the loss grew out of bounds.
#
# Config and seed decide a run, so playing it again would end the same way. It keeps its records,
# and
# is not played again unless its folder is removed; what it was compared with is compared without
# it, and a page names it.

NAME = "diverged.json"


def note(run: Path, round: int, why: str) -> None:
    """Write down that the run in this folder has diverged."""
    write_text(run / NAME, json.dumps({"round": round, "why": why}, indent=1) + "\n")


def diverged(run: Path) -> int | None:
    """The round that the run in this folder did not get past, if it has diverged."""
    file = run / NAME
    return int(json.loads(file.read_text())["round"]) if file.exists() else None


def why(run: Path) -> str:
    """What was written down."""
    return str(json.loads((run / NAME).read_text())["why"])
