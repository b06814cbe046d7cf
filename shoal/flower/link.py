"""Talking to a SuperLink with its owner's token: register members' keys, start a run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
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
from shoal.flower.layout import Place


class _WithToken:
    """Shows the owner's token; only to a server that the federation's authority vouches for."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers["Authorization"] = self._header
        return call_next(context)


class Link:
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


def owners_link(place: Place) -> Link:
    """To the SuperLink of a directory; refused if none has started there."""
    owner = place.owner
    return Link(owner.address(), place.authority, owner.token())
