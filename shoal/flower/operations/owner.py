"""What only a federation's owner has: a token for the SuperLink's control side, a secret for
running server apps, the port on this machine where both count, and a client that uses them."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from shoal.core.errors import UserError
from shoal.flower.keys import write_secret


# ---- the owner's secrets ----
class Owner:
    """A folder that nobody else can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # who sends it may register members and start runs
        self.token_file = folder / "control-token"
        # who signs with it may take server apps and run them
        self.secret_file = folder / "superexec-secret"
        # where the running SuperLink listens to its owner; a new port after every start
        self.port_file = folder / "port"

    def make(self) -> None:
        """The folder and its secrets, as far as they are missing (as in a folder of shoal 0.1)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for path in (self.token_file, self.secret_file):
            if not path.exists():
                write_secret(path, secrets.token_urlsafe(32).encode())

    def token(self) -> str:
        return _read_owned(self.token_file).decode()

    def secret(self) -> bytes:
        return _read_owned(self.secret_file)

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


def _read_owned(path: Path) -> bytes:
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


# ---- a client with them ----
class _WithToken:
    """Shows the owner's token; only to a server that the federation's authority vouches for."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers["Authorization"] = self._header
        return call_next(context)


class SuperLinkClient:
    """The control side of a SuperLink."""

    def __init__(self, address: str, authority: Path, token: str) -> None:
        self.address = address
        version = RuntimeVersionHttpInterceptor(component_name="shoal")
        self._client = ControlHttpClient.from_server_address(
            address, False, authority.read_bytes(), interceptors=[version, _WithToken(token)]
        )

    def wait(self, seconds: float) -> None:
        """Until the SuperLink answers."""
        until = time.monotonic() + seconds
        while True:
            try:
                self._client.ListRuns(ListRunsRequest())
                return
            except httpx.HTTPError as error:
                if time.monotonic() > until:
                    raise UserError(f"no SuperLink answers at {self.address} ({error})") from None
                time.sleep(0.2)

    def register(self, name: str, public: bytes) -> None:
        """Let the owner of this key in; to register twice changes nothing."""
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
        except httpx.HTTPStatusError as error:
            if "already in use" not in error.response.text.lower():
                raise UserError(
                    f"{name} could not be registered ({error.response.text[:200]})"
                ) from None

    def start(self, app: Path, settings: Mapping[str, Any]) -> int:
        """Start a run of an app directory; its number."""
        bundle = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings))
        )
        try:
            return int(self._client.StartRun(request).run_id)
        except httpx.HTTPStatusError as error:
            raise UserError(f"the run was not started ({error.response.text[:300]})") from None

    def runs(self) -> list[tuple[int, str]]:
        """Every run and its status."""
        found = self._client.ListRuns(ListRunsRequest())
        return [(int(i), str(run.status.status)) for i, run in found.run_dict.items()]

    def close(self) -> None:
        self._client.close()
