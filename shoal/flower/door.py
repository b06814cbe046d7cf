"""Which requests get in: paths that are named, and nothing else.

Flower has one application for members, for the owner and for running apps. A door lets a listener
answer only some of its paths. What is let in is built anew from what was checked: there is one
parser and one reading of every request, so nothing can be smuggled between two of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

MEMBERS = re.compile(rb"/v1/fleet/[a-z-]+")
OWNER = re.compile(rb"/v1/(control|runtime)/[a-z-]+")
SMALL = 64 << 10  # bytes that anybody may send; no request for being let in is longer
LARGE = 512 << 20  # bytes of one request of a member; Flower sends models in pieces of 5 MB
NOT_FOUND, LENGTH_REQUIRED, TOO_LARGE = 404, 411, 413
GOODBYE = 2  # seconds for requests under way when the process is asked to end
Headers = Mapping[bytes, bytes]


class Door:
    """Passes POST requests whose raw path matches ``paths`` exactly, on to ``app``.

    With ``known`` every request must say its length, and only those that ``known`` recognises by
    their headers may be longer than ``SMALL``. A request that is refused ends its connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: re.Pattern[bytes],
        known: Callable[[Headers], bool] | None = None,
    ) -> None:
        self.app, self.paths, self.known = app, paths, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # comes from the process, never from the network
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"no {scope['type']} here")
        status = await self._refusal(scope)
        if status is None:
            await self.app(_anew(scope), receive, send)
        else:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async def _refusal(self, scope: Scope) -> int | None:
        """Why a request is not let in; None if it is."""
        asked = scope["method"] == "POST" and not scope["query_string"]
        if not asked or self.paths.fullmatch(scope["raw_path"]) is None:
            return NOT_FOUND
        return None if self.known is None else await self._too_long(scope["headers"], self.known)

    async def _too_long(
        self, headers: list[tuple[bytes, bytes]], known: Callable[[Headers], bool]
    ) -> int | None:
        lengths = [value for name, value in headers if name == b"content-length"]
        if len(lengths) != 1 or any(name == b"transfer-encoding" for name, _ in headers):
            return LENGTH_REQUIRED
        if not lengths[0].isdigit() or len(lengths[0]) > 12 or int(lengths[0]) > LARGE:
            return TOO_LARGE
        if int(lengths[0]) > SMALL and not await asyncio.to_thread(known, dict(headers)):
            return TOO_LARGE
        return None


def _anew(scope: Scope) -> dict[str, Any]:
    """The request that was checked, and nothing that was not.

    Flower decides by the URL whom to ask for a signature, and a ``Host`` of a stranger's choice is
    a part of the URL; so it is replaced.
    """
    kept = [(name, value) for name, value in scope["headers"] if name != b"host"]
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope["http_version"],
        "method": "POST",
        "scheme": scope["scheme"],
        "path": scope["raw_path"].decode("ascii"),
        "raw_path": scope["raw_path"],
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"superlink"), *kept],
        "client": scope.get("client"),
        "server": scope.get("server"),
        "state": scope.get("state", {}),
    }


def listener(door: Door, **settings: Any) -> uvicorn.Config:
    """A server for a door, without upgrades to other protocols and without belief in proxies.

    Its parser is the strictest, and leaves every form of a target as it came.
    """
    given: dict[str, Any] = {
        "http": "h11",
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "proxy_headers": False,
        "server_header": False,
        "timeout_graceful_shutdown": GOODBYE,
        **settings,
    }
    return uvicorn.Config(door, **given)
