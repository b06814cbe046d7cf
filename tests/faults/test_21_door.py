"""Fault 21: with host and port alone a stranger ran code on the server.

Here the listener for members stands before an application that would answer everything, as Flower's
does. ``tests/flower/test_door.py`` attacks the real one.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import uvicorn

from shoal.core.errors import UserError
from shoal.flower.keys import make_certificates
from shoal.flower.operations.owner import Owner
from shoal.flower.operations.superlink import (
    MEMBER_BYTES,
    MEMBERS,
    OWNER,
    STRANGER_BYTES,
    Headers,
    RequestDoor,
    listener,
)
from shoal.flower.operations.up import FederationFolder, UpOptions, prepare, superlink_command

FLEET, CONTROL = b"/v1/fleet/pull-messages", b"/v1/control/start-run"
SECONDS = 10.0


class Everything:
    """Answers every request, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[bytes, bytes], int]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        self.seen.append((scope["path"], dict(scope["headers"]), length))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"the app"})


class Listening:
    """A door that is open on loopback."""

    def __init__(self, folder: Path, insecure: bool = False) -> None:
        self.app, self.folder, self.insecure = Everything(), folder, insecure
        make_certificates(folder, ["127.0.0.1"])
        tls = {"ssl_certfile": folder / "server.crt", "ssl_keyfile": folder / "server.key"}
        door = RequestDoor(self.app, MEMBERS, lambda headers: headers.get(b"who") == b"member")
        given = {} if insecure else tls
        self.server = uvicorn.Server(listener(door, host="127.0.0.1", port=0, **given))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        until = time.monotonic() + SECONDS
        while not self.server.started:
            assert time.monotonic() < until
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(SECONDS)

    def say(self, *parts: bytes, trust: bool = True, alpn: list[str] | None = None) -> bytes:
        """Send bytes on one connection, read until the server closes it."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        connection: Any = plain
        if not self.insecure:
            context = ssl.create_default_context(cafile=self.folder / "ca.crt")
            if not trust:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if alpn:
                context.set_alpn_protocols(alpn)
            connection = context.wrap_socket(plain, server_hostname="127.0.0.1")
            if alpn:
                assert connection.selected_alpn_protocol() is None
        found = b""
        with connection:
            for part in parts:
                connection.sendall(part)
            while True:
                try:
                    more = connection.recv(1 << 16)
                except (ConnectionResetError, ssl.SSLError):
                    more = b""
                if not more:
                    return found
                found += more


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Listening]:
    found = Listening(tmp_path)
    yield found
    found.close()


def request(target: bytes, method: bytes = b"POST", more: bytes = b"", close: bool = True) -> bytes:
    end = b"Connection: close\r\n" if close else b""
    head = method + b" " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + end
    return head + (more or b"Content-Length: 0\r\n") + b"\r\n"


@pytest.mark.parametrize("trust", [True, False])
def test_fleet_paths_pass_and_control_does_not(door: Listening, trust: bool) -> None:
    assert b"the app" in door.say(request(FLEET), trust=trust)
    assert door.say(request(CONTROL), trust=trust).startswith(b"HTTP/1.1 404")
    assert [path for path, *_ in door.app.seen] == ["/v1/fleet/pull-messages"]


REFUSED = [
    b"/v1/control/start-run",
    b"/v1/runtime/acquire-task",
    b"/v1/%63ontrol/start-run",
    b"/v1/%2563ontrol/start-run",
    b"/%76%31/control/start-run",
    b"/v1/fleet/%2e%2e/control/start-run",
    b"/v1/fleet/../control/start-run",
    b"/v1/fleet/./pull-messages",
    b"/v1/fleet/..%2fcontrol%2fstart-run",
    b"/v1/fleet/..;/control/start-run",
    b"/v1/fleet/pull-messages/../../control/start-run",
    b"/v1/fleet\\..\\control\\start-run",
    b"//v1/control/start-run",
    b"/v1//fleet/pull-messages",
    b"//v1/fleet/pull-messages",
    b"/v1/fleet/pull-messages/",
    b"/v1/fleet/",
    b"/v1/fleet",
    b"/v1/fleet/pull%2Dmessages",
    b"/v1/fleet/pull-messages%0a",
    b"/v1/fleet/pull-messages%00",
    b"/v1/fleet/pull-messages;x",
    b"/v1/fleet/pull-messages#x",
    b"/v1/fleet/pull-messages?x=/v1/control/start-run",
    b"/V1/FLEET/PULL-MESSAGES",
    b"/v1/Fleet/pull-messages",
    b"/v1/fleet/pull_messages",
    b"https://127.0.0.1/v1/control/start-run",
    b"https://127.0.0.1/v1/fleet/pull-messages",
    b"127.0.0.1:443",
    b"*",
    b"/",
    b"/health",
    b"/docs",
    b"/openapi.json",
]


def test_no_other_spelling_passes(door: Listening) -> None:
    for target in REFUSED:
        answer = door.say(request(target))
        assert answer.split(b" ")[1] in (b"400", b"404"), (target, answer)
    assert not door.app.seen


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "post"])
def test_no_other_method_passes(door: Listening, method: str) -> None:
    for target in (FLEET, CONTROL, b"127.0.0.1:443"):
        answer = door.say(request(target, method.encode()))
        assert answer.split(b" ")[1] in (b"400", b"404"), answer
    assert not door.app.seen


def test_every_request_of_a_connection_is_checked(door: Listening) -> None:
    """Sent one after the other without waiting; the second one is not let in after the first."""
    answer = door.say(request(FLEET, close=False), request(CONTROL, close=False), request(FLEET))
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 404") == 1
    assert [path for path, *_ in door.app.seen] == ["/v1/fleet/pull-messages"]


def test_nothing_is_smuggled_in_a_body(door: Listening) -> None:
    inside = request(CONTROL)
    length = b"Content-Length: %d\r\n" % len(inside)
    chunked = b"Transfer-Encoding: chunked\r\n"
    for more, body in (
        (length, inside),
        (length + chunked, b"0\r\n\r\n" + inside),
        (chunked, b"0\r\n\r\n" + inside),
        (b"Transfer-Encoding: xchunked\r\n" + length, inside),
        (b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(inside), inside),
        (b"Content-Length: +%d\r\n" % len(inside), inside),
        (b"Content-Length: 0\r\n Content-Length: %d\r\n" % len(inside), inside),
    ):
        answer = door.say(request(FLEET, more=more, close=False) + body, request(FLEET))
        assert b"404" not in answer.split(b"\r\n")[0]
    assert {path for path, *_ in door.app.seen} <= {"/v1/fleet/pull-messages"}


def test_no_upgrade_and_no_http2(door: Listening) -> None:
    upgrade = b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    upgrade += b"Sec-WebSocket-Version: 13\r\nContent-Length: 0\r\n"
    for kind in (b"websocket", b"h2c"):
        more = upgrade + b"Upgrade: " + kind + b"\r\n"
        for method in (b"GET", b"POST"):
            assert b" 101 " not in door.say(request(CONTROL, method, more))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    assert door.say(preface, alpn=["h2"]).startswith(b"HTTP/1.1 4")
    assert not door.app.seen


def test_the_request_that_gets_in_is_made_anew(door: Listening) -> None:
    """A stranger's ``Host`` is a part of the URL by which Flower decides whom to ask who it is."""
    host = b"Host: x/v1/health?\r\nContent-Length: 0\r\nX-Forwarded-Proto: http\r\n"
    door.say(b"POST " + FLEET + b" HTTP/1.1\r\nConnection: close\r\n" + host + b"\r\n")
    ((path, headers, _),) = door.app.seen
    assert path == "/v1/fleet/pull-messages" and headers[b"host"] == b"superlink"


def test_strangers_are_brief(door: Listening) -> None:
    def sent(length: int, who: bytes, body: bytes = b"") -> bytes:
        more = b"Content-Length: %d\r\nwho: %s\r\n" % (length, who)
        return door.say(request(FLEET, more=more) + body)

    assert b" 200 " in sent(STRANGER_BYTES, b"stranger", bytes(STRANGER_BYTES))
    assert b" 413 " in sent(STRANGER_BYTES + 1, b"stranger")
    assert b" 413 " in sent(MEMBER_BYTES + 1, b"member")
    assert b" 400 " in sent(10**30, b"member")  # the parser's own bound
    assert b" 411 " in door.say(request(FLEET, more=b"Transfer-Encoding: chunked\r\n"))
    big = 5 << 20
    assert b" 200 " in sent(big, b"member", bytes(big))
    assert [length for *_, length in door.app.seen] == [STRANGER_BYTES, big]


def test_without_tls_the_same_door(tmp_path: Path) -> None:
    """``--insecure`` leaves out TLS and node authentication, and opens nothing else."""
    door = Listening(tmp_path, insecure=True)
    try:
        assert b"the app" in door.say(request(FLEET))
        for target in REFUSED:
            assert door.say(request(target)).split(b" ")[1] in (b"400", b"404"), target
    finally:
        door.close()
    assert len(door.app.seen) == 1


def test_paths_of_members_and_owner_are_apart() -> None:
    for path in (b"/v1/control/start-run", b"/v1/runtime/acquire-task"):
        assert OWNER.fullmatch(path) and not MEMBERS.fullmatch(path)
    assert not OWNER.fullmatch(FLEET) and not OWNER.fullmatch(b"/docs")


def test_owners_secrets_are_the_owners(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "owner")
    owner.make()
    token, secret = owner.token(), owner.secret()
    assert token != secret.decode() and len(token) >= 32
    assert owner.folder.stat().st_mode & 0o777 == 0o700
    for path in (owner.token_file, owner.secret_file):
        assert path.stat().st_mode & 0o777 == 0o600
    owner.make()
    assert owner.token() == token  # the same after a restart
    owner.token_file.chmod(0o644)
    with pytest.raises(UserError, match="can be read by others"):
        owner.token()
    os.truncate(owner.secret_file, 0)
    with pytest.raises(UserError, match="too short"):
        owner.secret()
    with pytest.raises(UserError, match="no SuperLink has started"):
        owner.address()


def test_an_impostor_is_shown_no_token(tmp_path: Path) -> None:
    """Somebody else's server at the port that a SuperLink had: the owner's commands hang up."""
    from shoal.flower.operations.up import owners_link

    place = FederationFolder(tmp_path)
    place.owner.make()
    make_certificates(place.certificates, ["127.0.0.1"])
    impostor = Listening(tmp_path / "other")
    try:
        place.owner.opened(impostor.port)
        with pytest.raises(UserError, match="no SuperLink answers"):
            owners_link(place).wait(0.1)
    finally:
        impostor.close()
    assert not impostor.app.seen


def test_a_folder_of_an_older_version_gets_its_locks(tmp_path: Path) -> None:
    place = FederationFolder(tmp_path)
    (tmp_path / "superlink.db").write_bytes(b"old")
    (tmp_path / "superlink.db").chmod(0o644)
    prepare(place, UpOptions("app", 0, "127.0.0.1", 7, False, {}), ())
    assert place.owner.token() and place.owner.secret()
    assert place.database.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("insecure", [False, True])
def test_up_starts_flower_with_every_lock(tmp_path: Path, insecure: bool) -> None:
    place = FederationFolder(tmp_path)
    place.owner.make()
    command = superlink_command(place, UpOptions("app", 1, "0.0.0.0", 7, insecure, {}))
    text = " ".join(command)
    assert "--isolation process --superexec-auth-secret-file" in text
    assert "--door 0.0.0.0 7" in text and "--ssl-certfile" in text
    assert "--host" not in command and "--port" not in command  # loopback, whatever the user says
    for secret in (place.owner.token(), place.owner.secret().decode()):
        assert secret not in text  # command lines are for every user to read


def test_a_flower_without_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path is tried without a token before a port opens."""
    import asyncio

    from shoal.flower.operations.superlink import try_doors

    class Open:
        """As Flower is without a plugin: it answers."""

        paths = ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"]

        def openapi(self) -> dict[str, Any]:
            return {"paths": dict.fromkeys(self.paths)}

    app, known = Everything(), lambda headers: True
    with pytest.raises(UserError, match="answers /v1/control/register-node without the owner's"):
        asyncio.run(try_doors(Open(), RequestDoor(app, MEMBERS, known), RequestDoor(app, OWNER)))
    with pytest.raises(UserError, match="members would reach /docs"):
        asyncio.run(try_doors(Open(), app, RequestDoor(app, OWNER)))
    Open.paths = ["/v1/control/start-run"]
    with pytest.raises(UserError, match="has no /v1/control/register-node"):
        asyncio.run(try_doors(Open(), app, app))


def test_a_flower_without_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from shoal.flower.operations.up import needs_doors

    monkeypatch.delitem(sys.modules, "shoal.flower.operations.superlink", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.superlink.auth_plugin", None)
    with pytest.raises(UserError, match="lacks what keeps strangers out"):
        needs_doors()


def test_known_needs_a_registered_key_and_a_fresh_signature() -> None:
    from base64 import b64encode
    from datetime import UTC, datetime, timedelta

    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

    from shoal.flower.keys import Key
    from shoal.flower.operations.superlink import member

    ours, other = (Key(ec.generate_private_key(ec.SECP384R1())) for _ in range(2))

    class State:
        state = property(lambda self: self)
        linkstate_factory = property(lambda self: type("F", (), {"state": lambda _: self})())

        def get_node_id_by_public_key(self, public: bytes) -> int | None:
            return 7 if public == ours.public else None

    def headers(key: Key, signer: Key, when: datetime) -> Headers:
        stamp = when.isoformat().encode()
        signed = signer.private.sign(stamp, ec.ECDSA(hashes.SHA256()))
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER.encode(): b64encode(key.public),
            FLEET_HTTP_SIGNATURE_HEADER.encode(): b64encode(signed),
            TIMESTAMP_HEADER.encode(): stamp,
        }

    known, now = member(State()), datetime.now(UTC)
    assert known(headers(ours, ours, now))
    assert not known(headers(other, other, now))  # nobody registered it
    assert not known(headers(ours, other, now))
    assert not known(headers(ours, ours, now - timedelta(hours=1)))
    assert not known({}) and not known({FLEET_HTTP_PUBLIC_KEY_HEADER.encode(): b"x"})
