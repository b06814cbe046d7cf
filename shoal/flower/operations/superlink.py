"""Flower's SuperLink behind two doors, started by ``shoal flower up`` in a process of its own.

Flower serves members, its owner and running apps on one port and asks only members who they are.
Here members have a port with nothing but their own paths on it. The owner's side listens on this
machine only, and asks for the owner's token (control) and for the owner's secret (running apps).
Before the first port opens, every path of the owner's side is tried without them. What a door lets
in is built anew from what was checked: there is one parser and one reading of every request, so
nothing can be smuggled between two of them.

Flower's own SuperExec puts the token of a task on a command line, which every user of the machine
can read. Here it is in a file for the owner's eyes. Nothing but server apps is taken: the other
kinds of task that Flower knows are not run at all.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import (
    ACCESS_TOKEN_KEY,
    FLWR_INTERNAL_GRPC_CONTROL_API,
    FLWR_INTERNAL_GRPC_FLEET_API,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth.typing import AccountAuthLoginDetails, AccountInfo
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TYPE_TO_COMMAND,
    TaskType,
)
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.core.errors import UserError
from shoal.flower.keys import write_secret
from shoal.flower.operations.owner import Owner

# ---- doors ----
MEMBERS = re.compile(rb"/v1/fleet/[a-z-]+")
OWNER = re.compile(rb"/v1/(control|runtime)/[a-z-]+")
STRANGER_BYTES = 64 << 10  # bytes that anybody may send; no request for being let in is longer
MEMBER_BYTES = 512 << 20  # bytes of one request of a member; Flower sends models in pieces of 5 MB
NOT_FOUND, LENGTH_REQUIRED, TOO_LARGE = 404, 411, 413
GOODBYE_SECONDS = 2  # seconds for requests under way when the process is asked to end
Headers = Mapping[bytes, bytes]


class RequestDoor:
    """Passes POST requests whose raw path matches ``paths`` exactly, on to ``app``.

    With ``known`` every request must say its length, and only those that ``known`` recognises by
    their headers may be longer than ``STRANGER_BYTES``. A request that is refused ends its
    connection.
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
        if not lengths[0].isdigit() or len(lengths[0]) > 12 or int(lengths[0]) > MEMBER_BYTES:
            return TOO_LARGE
        if int(lengths[0]) > STRANGER_BYTES and not await asyncio.to_thread(known, dict(headers)):
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


def listener(door: RequestDoor, **settings: Any) -> uvicorn.Config:
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
        "timeout_graceful_shutdown": GOODBYE_SECONDS,
        **settings,
    }
    return uvicorn.Config(door, **given)


# ---- server apps ----
POLL_SECONDS = 0.5  # seconds between two looks for a task
METHOD = "/flwr.proto.Runtime/AcquireTask"
log = logging.getLogger("uvicorn.error")


@dataclass
class Executor:
    """Takes tasks at ``address`` and starts a process for each, for as long as this one lives."""

    owner: Owner
    address: str
    authority: Path
    running: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        for left in self.owner.folder.glob("task-*"):
            left.unlink()
        threading.Thread(target=self._work, daemon=True, name="executor").start()

    def _work(self) -> None:
        try:
            self._forever()
        except Exception:
            log.exception("shoal: server apps cannot be started any more")
            signal.raise_signal(signal.SIGTERM)

    def _forever(self) -> None:
        signed = SuperExecAuthHttpInterceptor(
            master_secret=self.owner.secret(), protected_methods=[METHOD]
        )
        client = RuntimeHttpClient.from_server_address(
            self.address,
            False,
            self.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        )
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        while True:
            try:
                found = client.AcquireTask(wanted)
                if found.HasField("task") and found.token:
                    self._launch(int(found.task.task_id), found.token)
            except httpx.HTTPError as error:
                log.warning("shoal: no task could be asked for (%s)", error)
            self._forget()
            time.sleep(POLL_SECONDS)

    def _launch(self, number: int, token: str) -> None:
        path = self.owner.folder / f"task-{number}"
        write_secret(path, token.encode())
        command = [TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP], "--token-file", str(path)]
        command += ["--runtime-api-address", self.address]
        command += ["--root-certificates", str(self.authority), "--parent-pid", str(os.getpid())]
        nothing = subprocess.DEVNULL  # Flower sends an app's output to the SuperLink
        self.running[path] = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )

    def _forget(self) -> None:
        """Tokens of processes that have ended."""
        for path, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[path]
                with suppress(FileNotFoundError):
                    path.unlink()


# ---- the SuperLink ----
# Either opens ports of its own to everybody; a login elsewhere is no login with our token.
CLOSED = (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API, "FLWR_OIDC_ENABLED")
DANGEROUS = ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task")
NOT_LET_IN = (401, 403, 501)  # 501: there is no login by which a token could be had
Metadata = Sequence[tuple[str, str | bytes]]


class TokenPlugin(NoOpControlAuthnPlugin):
    """Flower's control side for whoever has the owner's token, under Flower's only account."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token.encode()

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        given = [value for name, value in metadata if name == ACCESS_TOKEN_KEY]
        if len(given) != 1:
            return False, None
        word = given[0].encode() if isinstance(given[0], str) else given[0]
        if not hmac.compare_digest(word, self._token):
            return False, None
        found: tuple[bool, AccountInfo | None] = super().validate_tokens_in_metadata(metadata)
        return found

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        raise FlowerError(ApiErrorCode.NO_ACCOUNT_AUTH, "there is no login, only the owner's token")

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        return None, None


def member(app: Any) -> Callable[[Headers], bool]:
    """Whether a request's headers are signed with a registered key, before its body is read."""

    def known(headers: Headers) -> bool:
        try:
            public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            stamp = headers[TIMESTAMP_HEADER.encode()]
            signed = datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.now(signed.tzinfo) - signed).total_seconds()
            if abs(age) > 2 * TIMESTAMP_TOLERANCE:  # Flower itself is stricter, later on
                return False
            if not verify_signature(bytes_to_public_key(public), stamp, signature):
                return False
        except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
            return False
        return app.state.linkstate_factory.state().get_node_id_by_public_key(public) is not None

    return known


async def try_doors(app: Any, members: ASGIApp, owner: ASGIApp) -> None:
    """Refuse to start if any path of the owner's side answers without token and secret."""
    paths = set(app.openapi()["paths"])
    missing = sorted(set(DANGEROUS) - paths)
    if missing:
        raise UserError(f"this Flower has no {missing[0]}, so its doors cannot be tried; install "
                        "flwr>=1.41,<1.43")  # fmt: skip
    sent = {"content": b"", "headers": {"content-type": PROTOBUF_MEDIA_TYPE}}
    for path in sorted(paths | {"/docs", "/openapi.json"}):
        outside, inside = await _status(members, path, sent), await _status(owner, path, sent)
        if outside != NOT_FOUND and not MEMBERS.fullmatch(path.encode()):
            raise UserError(f"members would reach {path} (status {outside}); not started")
        if inside not in NOT_LET_IN and not (inside == NOT_FOUND and _no_door(path)):
            raise UserError(f"this Flower answers {path} without the owner's token or secret "
                            f"(status {inside}); not started")  # fmt: skip


def _no_door(path: str) -> bool:
    return OWNER.fullmatch(path.encode()) is None


async def _status(app: ASGIApp, path: str, sent: dict[str, Any]) -> int:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://superlink") as client:
        return (await client.post(path, **sent)).status_code


def settings_of(flags: Sequence[str], port: int, token: str) -> Any:
    """What Flower makes of its own flags, with the control side closed to all but the owner."""
    sys.argv = ["flower-superlink", *flags, "--host", "127.0.0.1", "--port", str(port)]
    found = _parse_superlink_lifespan_config()
    if found.isolation != "process" or not found.superexec_auth_secret or not found.ssl_keyfile:
        raise UserError("the SuperLink starts only with TLS on its inner port, --isolation process "
                        "and --superexec-auth-secret-file")  # fmt: skip
    return replace(found, authn_plugin=TokenPlugin(token))


async def serve_doors(
    inner: uvicorn.Server, outer: uvicorn.Server, place: socket.socket, ready: Callable[[], None]
) -> None:
    """Both listeners until a signal; the owner's is there before the first member comes.

    The last one to start gets the signal first and hands it on when it has ended.
    """
    bound = outer.config.bind_socket()
    tasks: list[asyncio.Task[None]] = []
    for server, where in ((inner, place), (outer, bound)):
        tasks.append(asyncio.create_task(server.serve([where])))
        while not server.started and not tasks[-1].done():
            await asyncio.sleep(0.02)
    if not any(task.done() for task in tasks):
        ready()
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    inner.should_exit = outer.should_exit = True
    for task in (*done, *others):
        await task


def _run(owner: Owner, host: str, port: int, insecure: bool, flags: Sequence[str]) -> None:
    place = socket.create_server(("127.0.0.1", 0))
    inside = int(place.getsockname()[1])
    settings = settings_of(flags, inside, owner.token())
    app = create_app(settings, SuperLinkLifespan)
    members, own = RequestDoor(app, MEMBERS, member(app)), RequestDoor(app, OWNER)
    logging.disable(logging.CRITICAL)  # every one of these requests is refused, as it should be
    asyncio.run(try_doors(app, members, own))
    logging.disable(logging.NOTSET)
    tls = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile}
    words = get_uvicorn_log_config(logging.INFO)
    inner = listener(own, lifespan="on", log_config=words, **tls)
    outer = listener(members, host=host, port=port, **({} if insecure else tls))

    def ready() -> None:
        Executor(owner, f"127.0.0.1:{inside}", Path(settings.ssl_ca_certfile)).start()
        owner.opened(inside)

    with asyncio.Runner(loop_factory=inner.get_loop_factory()) as runner:
        runner.run(serve_doors(uvicorn.Server(inner), uvicorn.Server(outer), place, ready))


def main() -> None:
    """``flower-superlink --owner FOLDER --door HOST PORT [--insecure]`` and Flower's own flags."""
    os.umask(0o077)  # databases, apps and runs are their owner's business
    for name in CLOSED:
        os.environ.pop(name, None)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("program")
    parser.add_argument("--owner", type=Path, required=True)
    parser.add_argument("--door", nargs=2, metavar=("HOST", "PORT"), required=True)
    parser.add_argument("--insecure", action="store_true")
    own, flags = parser.parse_known_args()
    try:
        _run(Owner(own.owner), own.door[0], int(own.door[1]), own.insecure, flags)
    except UserError as error:
        sys.exit(f"shoal: {error}")
