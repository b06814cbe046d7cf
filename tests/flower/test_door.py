"""An attack on a real federation: by a stranger with host and port, by a user of the same machine,
and by a member. The federation goes on and ends as if nothing had been."""

from __future__ import annotations

import hashlib
import socket
import ssl
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flower.real import CONFIG, Real, ours
from flower.test_up import until
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from typer.testing import CliRunner

from shoal.cli.app import app as commands
from shoal.config import from_mapping
from shoal.flower.apps import write_app
from shoal.flower.data_form import DataForm
from shoal.flower.keys import Key, new_key, read_key
from shoal.flower.operations.up import (
    SUPERLINK,
    FederationFolder,
    LocalFederation,
    UpOptions,
    free_port,
    prepare,
)

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}
REFUSED_OUTSIDE, REFUSED_INSIDE = 404, 401
EVIL = '''"""Would be run by the server."""

from pathlib import Path

from flwr.serverapp import ServerApp

app = ServerApp()
Path({path!r}).write_text("run")


@app.main()
def main(grid, context):
    pass
'''


def evil_run(folder: Path) -> bytes:
    """A request to run an app that leaves a file behind."""
    write_app(folder / "evil", from_mapping(CONFIG), DataForm((64,), 10))
    (path,) = (folder / "evil").glob("*/server_app.py")
    path.write_text(EVIL.format(path=str(folder / "was-run")))
    bundle = build_fab_from_disk(folder / "evil")
    fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
    found: bytes = StartRunRequest(fab=fab).SerializeToString()
    return found


def attacks(folder: Path) -> dict[str, bytes]:
    new_key(folder / "evil-key")
    public = read_key(folder / "evil-key").public
    return {
        "/v1/control/list-runs": ListRunsRequest().SerializeToString(),
        "/v1/control/list-nodes": b"",
        "/v1/control/start-run": evil_run(folder),
        "/v1/control/register-node": RegisterNodeRequest(
            public_key=public, name="evil"
        ).SerializeToString(),
        "/v1/runtime/acquire-task": AcquireTaskRequest(
            supported_task_types=["flwr-serverapp"]
        ).SerializeToString(),
        "/v1/runtime/get-nodes": b"",
        "/v1/runtime/pull-task-input": b"",
    }


def spellings(path: str) -> list[str]:
    """Ways to write a path that some server takes for the same one."""
    _, first, second, last = path.split("/")
    encoded = f"%{ord(second[0]):02x}{second[1:]}"
    return [
        f"/{first}/{encoded}/{last}",
        f"/{first}/%25{encoded[1:]}/{last}",
        f"//{first}/{second}/{last}",
        f"/{first}/fleet/../{second}/{last}",
        f"/{first}/fleet/%2e%2e/{second}/{last}",
        f"/{first}/fleet/..%2f{second}%2f{last}",
        f"/{first}/{second}/{last}?/v1/fleet/get-run",
        f"https://127.0.0.1/{first}/{second}/{last}",
    ]


def signed(key: Key) -> dict[str, str]:
    """What a member's node sends with every request."""
    stamp = now().isoformat()
    signature = key.private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        **PROTOBUF,
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key.public).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        TIMESTAMP_HEADER: stamp,
    }


def raw(address: str, authority: Path | None, *requests: tuple[str, bytes]) -> list[int]:
    """Statuses of requests that are all sent at once on one connection, bytes as they are."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=20)
    connection: Any = plain
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        connection = context.wrap_socket(plain, server_hostname=host)
    found = b""
    with connection:
        for path, body in requests:
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
            kind = f"Content-Type: {PROTOBUF_MEDIA_TYPE}\r\n\r\n"
            connection.sendall((head + kind).encode() + body)
        connection.settimeout(3)
        try:
            while more := connection.recv(1 << 16):
                found += more
        except (TimeoutError, ConnectionResetError, ssl.SSLError):
            pass
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def listening(folder: Path) -> set[tuple[str, int]]:
    """Where processes of a test wait for connections."""
    found = set()
    for pid in ours(folder):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def attack_from_outside(address: str, authority: Path, wanted: dict[str, bytes]) -> None:
    for trust in (ssl.create_default_context(cafile=authority), False):
        with httpx.Client(verify=trust, base_url=f"https://{address}") as client:
            for path, body in wanted.items():
                for method in ("POST", "GET", "PUT"):
                    answer = client.request(method, path, content=body, headers=PROTOBUF)
                    assert answer.status_code == REFUSED_OUTSIDE, (path, answer)
    for path, body in wanted.items():
        for spelling in spellings(path):
            assert raw(address, authority, (spelling, body)) in ([400], [404]), spelling
        # after a request that is let in (and answered by Flower: it is not signed)
        again = raw(address, authority, ("/v1/fleet/get-run", b""), (path, body))
        assert again == [401, REFUSED_OUTSIDE], (path, again)


def attack_from_inside(address: str, authority: Path, wanted: dict[str, bytes]) -> None:
    trust = ssl.create_default_context(cafile=authority)
    for word in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic eDp4"}):
        with httpx.Client(verify=trust, base_url=f"https://{address}") as client:
            for path, body in wanted.items():
                answer = client.post(path, content=body, headers={**PROTOBUF, **word})
                assert answer.status_code == REFUSED_INSIDE, (path, word, answer)
    for path, body in wanted.items():
        for spelling in spellings(path):
            assert raw(address, authority, (spelling, body))[0] in (400, 401, 404), spelling
    for path in ("get-login-details", "get-auth-tokens", "refresh-auth-tokens"):
        assert raw(address, authority, (f"/v1/control/{path}", b""))[0] in (401, 501)
    for path in ("/v1/fleet/get-run", "/docs", "/openapi.json", "/health"):
        assert raw(address, authority, (path, b"")) == [404]


def attack_as_member(real: Real, wanted: dict[str, bytes]) -> None:
    """With a registered key: nothing beside the members' paths, and no other member's part."""
    trust = ssl.create_default_context(cafile=real.place.authority)
    keys = [read_key(real.place.node(index) / "key") for index in range(2)]
    with httpx.Client(verify=trust, base_url=f"https://{real.up.address}") as client:

        def post(path: str, body: bytes, key: Key) -> int:
            return client.post(path, content=body, headers=signed(key)).status_code

        for path, body in wanted.items():
            assert post(path, body, keys[0]) == REFUSED_OUTSIDE
        asked = PullMessagesRequest()
        for index, expected in ((1, 401), (0, 200)):  # another's messages, and one's own
            asked.node.node_id = real.number(index)
            assert post("/v1/fleet/pull-messages", asked.SerializeToString(), keys[0]) == expected
        other = real.number(1)
        gone = DeactivateNodeRequest(node_id=other).SerializeToString()
        assert post("/v1/fleet/deactivate-node", gone, keys[0]) == 401
        alive = SendNodeHeartbeatRequest(heartbeat_interval=30)
        alive.node.node_id = other
        assert post("/v1/fleet/send-node-heartbeat", alive.SerializeToString(), keys[0]) == 401
        taken = ActivateNodeRequest(public_key=keys[1].public, heartbeat_interval=30)
        assert post("/v1/fleet/activate-node", taken.SerializeToString(), keys[0]) == 401
        big = bytes(1 << 20)
        stranger = client.post("/v1/fleet/push-object", content=big, headers=PROTOBUF)
        assert stranger.status_code == 413


def assert_nothing_to_read(place: FederationFolder, folder: Path) -> None:
    """What another user of the machine could see: modes, command lines."""
    owner = place.owner
    assert owner.folder.stat().st_mode & 0o777 == 0o700
    private = [*owner.folder.iterdir(), place.certificates / "server.key"]
    private += list(place.path.glob("superlink.db*"))
    assert len(list(owner.folder.glob("task-*"))) == 1  # of the server app that is running
    for path in private:
        assert path.stat().st_mode & 0o077 == 0, path
    words = [path.read_text().strip() for path in owner.folder.iterdir() if path.name != "port"]
    (app,) = [p for p in map(psutil.Process, ours(folder)) if "flwr-serverapp" in str(p.cmdline())]
    assert "--token-file" in app.cmdline()
    for pid in ours(folder):
        line = " ".join(psutil.Process(pid).cmdline())
        assert not any(word in line for word in words), line
    for path in (path for path in place.path.rglob("*") if path.is_file()):
        mode = path.stat().st_mode
        assert not mode & 0o022, path
        if mode & 0o044 and owner.folder not in path.parents:
            assert not any(word.encode() in path.read_bytes() for word in words), path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_attack_changes_nothing(tmp_path: Path) -> None:
    wanted = attacks(tmp_path)
    with Real(tmp_path, 2, 3, **{"start-members": 2, "deadline": 120.0}) as real:
        real.hold_at(1)
        for index in range(2):
            real.node(index)
        real.start_run()
        real.until_held(range(2), 1)
        inside = real.place.owner.address()
        port = int(inside.rpartition(":")[2])
        assert listening(tmp_path) == {("127.0.0.1", port), ("127.0.0.1", real.up.port)}
        attack_from_outside(real.up.address, real.place.authority, wanted)
        attack_from_inside(inside, real.place.authority, wanted)
        attack_as_member(real, wanted)
        assert_nothing_to_read(real.place, tmp_path)
        assert len(real.federation.link.runs()) == 1  # ours
        new_key(tmp_path / "late")
        words = ["flower", "register", str(real.place.path), "late", str(tmp_path / "late.pub")]
        assert "knows it too" in CliRunner().invoke(commands, words).output
        real.hold_at(3)
        real.until(lambda: real.place.finished, "the end")
        assert real.rounds() == 3 and [real.count(i, "accepted") for i in range(2)] == [3, 3]
        assert len(real.federation.link.runs()) == 1
    assert not (tmp_path / "was-run").exists()
    assert not ours(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_insecure_is_closed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No TLS for members; the owner's side as ever, and no port that the environment asks for."""
    for name in ("CONTROL", "FLEET"):
        monkeypatch.setenv(f"FLWR_INTERNAL_GRPC_{name}_API", "1")
    wanted, place = attacks(tmp_path), FederationFolder(tmp_path / "up")
    up = UpOptions(str(tmp_path / "evil"), 0, "127.0.0.1", free_port(), True, {})
    prepare(place, up, ())
    with LocalFederation(place, up, print) as federation:
        federation.start_superlink()
        inside = place.owner.address()
        port = int(inside.rpartition(":")[2])
        assert listening(tmp_path) == {("127.0.0.1", port), ("127.0.0.1", up.port)}
        for path, body in wanted.items():
            for spelling in (path, *spellings(path)):
                assert raw(up.address, None, (spelling, body)) in ([400], [404])
            assert raw(up.address, None, ("/v1/fleet/get-run", b""), (path, body)) == [401, 404]
        attack_from_inside(inside, place.authority, wanted)
        assert federation.link.runs() == []
        assert not (tmp_path / "was-run").exists()
        owned = {**PROTOBUF, "authorization": f"Bearer {place.owner.token()}"}
        trust = ssl.create_default_context(cafile=place.authority)
        started = httpx.post(
            f"https://{inside}/v1/control/start-run",
            content=wanted["/v1/control/start-run"],
            headers=owned,
            verify=trust,
        )
        assert started.status_code == 200  # the attack is real: its owner may do it
        until((tmp_path / "was-run").exists, place.superlink_log)
        federation.processes.sweep(SUPERLINK)
        other = replace(up, port=free_port())
        with socket.create_server(("127.0.0.1", other.port)):
            taken = LocalFederation(place, other, print)
            with taken, pytest.raises(Exception, match="the SuperLink did not start"):
                taken.start_superlink()
    assert not ours(tmp_path)
