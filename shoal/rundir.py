"""Names inside a run directory, and what is written there as text."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from shoal import lock
from shoal.durable import (
    check_writable,
    private_folder,
    put_in_place,
    sync_directory,
    sync_file,
    write_bytes,
    write_text,
)
from shoal.errors import UserError


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
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def lock(self) -> Path:
        """Held by the process that writes here."""
        return self.checkpoint / "lock"

    @property
    def origin(self) -> Path:
        """Digests of what the run was started with (:mod:`shoal.origin`)."""
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
            held = lock.hold(made.lock, self.path)
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
        lock.check_free(self.lock, self.path)


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        dict(values), sort_keys=False, default_flow_style=None, width=100, allow_unicode=True
    )


def dump_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: what is not finite becomes null.

    >>> dump_json({"loss": float("nan"), "cohort": (1, 2)})
    '{"loss": null, "cohort": [1, 2]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


__all__ = [
    "RunDir",
    "dump_json",
    "dump_yaml",
    "put_in_place",
    "sync_directory",
    "sync_file",
    "write_bytes",
    "write_text",
]
