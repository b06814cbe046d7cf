"""Where the cluster is, who answers there, and what goes along to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import ray
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal.core.errors import UserError
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds.state import Settings
from shoal.runs.cluster import connect
from shoal.runs.cluster.connect import Cluster, answers, connected
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from shoal.methods.slots import Part

def half(gradient):
    return 0.5 * gradient

@dataclass(frozen=True, kw_only=True)
class Halved(Part):
    def grad(self, view, inner):
        return half(inner(view.x))

@dataclass(frozen=True, kw_only=True)
class EagerlyHalved(Halved):
    loop_only_reason: ClassVar[str] = "it looks around"
"""


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where somebody listens and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["{}", "ray://{}"])
def test_nobody_is_at_the_address(kind: str, closed: int) -> None:
    began, address = time.monotonic(), kind.format(f"127.0.0.1:{closed}")
    with pytest.raises(UserError, match=f"ray.address: nobody answers at {address}.*ray start"):
        connected(Cluster(address=address))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("{}", "does not answer as the head .*token.*ray status"),
        ("ray://{}", "no client of Ray of this version can join .*token.*client-server-port"),
    ],
)
def test_somebody_else_is_at_the_address(kind: str, told: str, silent: int) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match=told):
        connected(Cluster(address=kind.format(f"127.0.0.1:{silent}")))
    assert time.monotonic() - began < 20


def test_a_client_that_failed_does_not_stay(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would ask it about every later cluster of the process."""
    monkeypatch.setattr(connect, "ASK_CLIENT_SERVER", "")
    with pytest.raises(UserError, match="no client of Ray of this version can join"):
        connected(Cluster(address=f"ray://127.0.0.1:{silent}"))
    assert len(connected(Cluster(address="local", workers=1)).ray.nodes()) == 1
    ray.shutdown()


@pytest.fixture
def guarded(closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The head as ``ray start --head`` makes it: it asks for a token, which lies in its home. Its
    addresses, for nodes and for Ray's client."""
    other = closed + 1 if closed < 2**16 - 1 else closed - 1
    with TemporaryDirectory(prefix="ray") as short:  # sockets have short names
        env = {**os.environ, "HOME": str(tmp_path), "RAY_TMPDIR": short, "RAY_AUTH_MODE": "token"}
        ray_s = [sys.executable, "-m", "ray.scripts.scripts"]
        subprocess.run([*ray_s, "get-auth-token", "--generate"], env=env, capture_output=True)
        words = ["start", "--head", "--block", f"--port={closed}", "--num-cpus=1",
                 f"--ray-client-server-port={other}"]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        head = subprocess.Popen([*ray_s, *words, "--include-dashboard=false"], env=env, **quiet)
        until = time.monotonic() + 60
        while not (answers(("127.0.0.1", closed)) and answers(("127.0.0.1", other))):
            assert time.monotonic() < until and head.poll() is None
            time.sleep(0.2)
        monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)  # which a Ray of our own leaves set
        yield [f"127.0.0.1:{closed}", f"ray://127.0.0.1:{other}"]
        head.terminate()
        head.wait(30)


def test_the_cluster_asks_for_a_token(
    guarded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_it, is_it = "set RAY_AUTH_MODE=.*RAY_AUTH_TOKEN_PATH", "the token is from .*is it the clus"
    for address in guarded:
        began, told = time.monotonic(), f"the Ray cluster at {address} asks for a token.* "
        with pytest.raises(UserError, match=told + set_it):
            connected(Cluster(address=address))
        assert time.monotonic() - began < 20
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for address in guarded:
        told = f"the Ray cluster at {address} asks for a token.* "
        with pytest.raises(UserError, match=told + is_it):
            connected(Cluster(address=address))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    for address in guarded:
        told = f"the Ray cluster at {address} asks for a token.* the token is from RAY_AUTH_TOKEN:"
        with pytest.raises(UserError, match=told):
            connected(Cluster(address=address))


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:port", "ray://host", ":6379"])
def test_no_address(address: str) -> None:
    with pytest.raises(UserError, match=r"ray.address: .* is none; write host:port"):
        connected(Cluster(address=address))


def test_the_address_of_the_environment(
    nodes: Make, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = nodes(2, join=False)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    made: Ray = engine(workers=1)
    assert len(made.crew.ready) == 1 and len(ray.nodes()) == 1
    assert made._connection.head == (cluster.address.split(":")[0], int(cluster.address[-5:]))


def settings_of(name: str) -> Settings:
    world = SmallWorld()
    part = getattr(sys.modules["halved_gradients"], name)()
    return settings_for(Method("halved", (part,)), world, small_task(world=world))


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's module that no worker can import from where it is."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "halved_gradients.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    __import__("halved_gradients")
    monkeypatch.undo()
    yield folder
    del sys.modules["halved_gradients"]


@pytest.mark.parametrize("name", ["Halved", "EagerlyHalved"])
@pytest.mark.parametrize("folder", [True, False])
def test_own_modules_go_along(
    folder: bool, name: str, own_module: Path, nodes: Make, engine: Make
) -> None:
    """With the program, or as ``working_dir`` says, with their folder."""
    cluster = nodes(1, join=False)
    where = {"working_dir": str(own_module)} if folder else {}
    settings = settings_of(name)
    here = Loop() if name == "EagerlyHalved" else Stacked()
    _, _, found = play(settings, engine(address=cluster.address, **where), 2)
    assert torch.equal(found[-1], play(settings, here, 2)[2][-1])


def test_more_cores_than_there_are(engine: Make) -> None:
    made: Ray = engine(workers=2, cpus_per_worker=40)
    assert "ray: 80 cores were asked for on a machine that has" in made.notes[0]


def test_the_command_says_it_in_a_line(closed: int, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    world = "world: {name: static, members: 3, rounds: 1, partition: iid}"
    config.write_text(f"{world}\nengine: ray\nray: {{address: '127.0.0.1:{closed}'}}\n")
    command = [sys.executable, "-m", "shoal", "run", str(config), "-o", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 2 and not (tmp_path / "a").exists()
    assert done.stderr.startswith("shoal: ray.address: nobody answers"), done.stderr
    assert len(done.stderr.splitlines()) == 1
