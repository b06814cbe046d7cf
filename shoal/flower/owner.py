"""What only a federation's owner has: a token for the SuperLink's control side, a secret for
running server apps, and the port on this machine where both count."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError
from shoal.flower.keys import write_secret


@dataclass(frozen=True)
class Owner:
    """A folder that nobody else can read."""

    folder: Path

    @property
    def token_file(self) -> Path:
        """Who sends it may register members and start runs."""
        return self.folder / "control-token"

    @property
    def secret_file(self) -> Path:
        """Who signs with it may take server apps and run them."""
        return self.folder / "superexec-secret"

    @property
    def port_file(self) -> Path:
        """Where the running SuperLink listens to its owner; a new port after every start."""
        return self.folder / "port"

    def make(self) -> None:
        """The folder and its secrets, as far as they are missing (as in a folder of shoal 0.1)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for path in (self.token_file, self.secret_file):
            if not path.exists():
                write_secret(path, secrets.token_urlsafe(32).encode())

    def token(self) -> str:
        return _read(self.token_file).decode()

    def secret(self) -> bytes:
        return _read(self.secret_file)

    def address(self) -> str:
        """Of the SuperLink's inner side."""
        try:
            return f"127.0.0.1:{int(self.port_file.read_text())}"
        except (OSError, ValueError):
            raise UserError(f"no SuperLink has started in {self.folder.parent}") from None

    def opened(self, port: int) -> None:
        """Tell the owner's commands the port."""
        new = self.port_file.with_suffix(".new")
        new.unlink(missing_ok=True)
        write_secret(new, str(port).encode())
        new.replace(self.port_file)

    def closed(self) -> None:
        with suppress(FileNotFoundError):
            self.port_file.unlink()


def _read(path: Path) -> bytes:
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError:
        raise UserError(f"{path} cannot be read; shoal flower up makes it") from None
    if os.name != "nt" and mode & 0o077:
        raise UserError(f"{path} can be read by others than its owner, who may have copied it; "
                        "delete it, and shoal flower resume makes a new one")  # fmt: skip
    if len(content) < 32:
        raise UserError(f"{path} is too short; delete it, and shoal flower resume makes a new one")
    return content
