"""Where a federation's owner keeps what: keys and certificates, the SuperLink's state, the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.durable import private_folder
from shoal.errors import UserError
from shoal.flower.owner import Owner
from shoal.rundir import dump_json, write_text

LOCK = "lock"


@dataclass(frozen=True)
class Place:
    """The directory of ``shoal flower up``."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "up.json"

    @property
    def certificates(self) -> Path:
        return self.path / "certificates"

    @property
    def authority(self) -> Path:
        return self.certificates / "ca.crt"

    @property
    def owner(self) -> Owner:
        """Token, secret and port of the SuperLink's inner side."""
        return Owner(self.path / "owner")

    @property
    def database(self) -> Path:
        """The SuperLink's; tokens of running apps are in it."""
        return self.path / "superlink.db"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def roster(self) -> Path:
        return self.run / "roster.json"

    @property
    def lock(self) -> Path:
        """Held by the one server that uses the run."""
        return self.run / LOCK

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def superlink_log(self) -> Path:
        return self.logs / "superlink.log"

    @property
    def finished(self) -> bool:
        return (self.run / "summary.json").exists()

    def node(self, index: int) -> Path:
        return self.path / "nodes" / f"node-{index:02d}"


@dataclass(frozen=True)
class Up:
    """What ``up`` was asked for, kept for ``resume`` and ``status``."""

    app: str
    nodes: int
    host: str
    port: int
    insecure: bool
    settings: dict[str, Any]

    @property
    def address(self) -> str:
        """Where members on this machine find the SuperLink: the outer port, theirs alone."""
        return f"{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"

    def write(self, place: Place) -> None:
        private_folder(place.path)
        write_text(place.settings, dump_json(vars(self), indent=2) + "\n")


def read_up(place: Place) -> Up:
    try:
        return Up(**json.loads(place.settings.read_text()))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{place.path} is no directory of shoal flower up") from None
