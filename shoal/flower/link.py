"""Talking to a SuperLink as its owner: register members' keys, start a run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from shoal.errors import UserError


class Link:
    """The control side of a SuperLink."""

    def __init__(self, address: str, authority: Path | None) -> None:
        self.address = address
        self._client = ControlHttpClient.from_server_address(
            address,
            authority is None,
            str(authority) if authority is not None else None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="shoal")],
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
