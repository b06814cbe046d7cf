"""Clusters that change under a run: nodes that are lost, join, are drained; a head that is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from mortal import Striking
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
from support import SmallWorld, play, settings_for, small_task
from torch import Tensor

from shoal import catalog
from shoal.engines.api import Engine
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.methods.slots import Part
from shoal.runs.cluster import crew
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
WORLD = SmallWorld(clients=8)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LATER", 30.0)  # a busy machine starts the second worker slowly


def played(engine: Engine, rounds: int, *parts: Part) -> Tensor:
    method = Method("own", parts)
    settings = settings_for(method, WORLD, small_task(world=WORLD), participation=1.0, epochs=1)
    return play(settings, engine, rounds)[2][-1]


def test_a_node_is_lost_in_a_round(nodes: Make, engine: Make, tmp_path: Path) -> None:
    """With the default number of workers, whose replacement has no core left to go to."""
    cluster = nodes(1)
    lost = cluster.add_node(num_cpus=1)
    made: Ray = engine()
    assert len(made.crew.ready) == 2
    threading.Timer(1.5, cluster.remove_node, (lost,), {"allow_graceful": False}).start()
    slow = Striking(folder=str(tmp_path), times=0, nap=0.05)
    assert torch.equal(played(made, 4, slow), played(Loop(), 4))
    assert any("is gone" in note and "round" in note for note in made.notes), list(made.notes)
    assert len(made.crew.ready) == 1


def test_a_node_joins(nodes: Make, engine: Make) -> None:
    cluster = nodes(1)
    made: Ray = engine()
    alone = played(Stacked(), 2)
    assert torch.equal(played(made, 2), alone) and len(made.crew.ready) == 1
    cluster.add_node(num_cpus=1)
    until = time.monotonic() + 30
    while len(made.crew.ready) < 2 and time.monotonic() < until:
        assert torch.equal(played(made, 2), alone)
    assert len({hand.node for hand in made.crew.ready}) == 2
    assert any("room for 2 workers now" in note for note in made.notes)


def test_a_node_is_drained(nodes: Make, engine: Make, tmp_path: Path) -> None:
    """As an autoscaler or ``ray drain-node`` does: the worker leaves after its share, and then
    the node. What is going on meanwhile is not disturbed."""
    cluster = nodes(1)
    drained = cluster.add_node(num_cpus=1)
    made: Ray = engine()
    until = time.monotonic() + 30
    while drained.node_id not in {hand.node for hand in made.crew.ready}:
        assert time.monotonic() < until
        made.crew.tend()
        time.sleep(0.1)
    slow = Striking(folder=str(tmp_path), times=0, nap=0.05)
    threading.Timer(1.0, drain, (cluster.address, drained.node_id)).start()
    assert torch.equal(played(made, 6, slow), played(Loop(), 6))
    assert drained.node_id not in {hand.node for hand in made.crew.hands}
    told = list(made.notes)
    assert [note for note in told if "leaves in time: its node is drained" in note], told
    assert not [note for note in told if "done again" in note], told
    until = time.monotonic() + 20
    while any(node["Alive"] and node["NodeID"] == drained.node_id for node in ray.nodes()):
        assert time.monotonic() < until, "the node does not go although nobody is on it"
        time.sleep(0.2)


def drain(address: str, node: str) -> None:
    """What ``ray drain-node`` asks for: a minute until the machine is taken away."""
    end = int(1000 * (time.time() + 60))
    why = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, said = GcsClient(address=address).drain_node(node, why, "taken back", end)
    assert accepted, said


def test_an_empty_cluster_grows(nodes: Make, engine: Make) -> None:
    cluster, found = nodes(0), list[Tensor]()
    run = threading.Thread(target=lambda: found.append(played(engine(), 1)))
    run.start()
    time.sleep(3)
    assert not found
    cluster.add_node(num_cpus=1)
    run.join(60)
    assert found and torch.equal(found[0], played(Stacked(), 1))


def test_the_object_store_is_full(nodes: Make, engine: Make) -> None:
    """Ray puts on disk what does not fit."""
    store = 80 * 2**20
    nodes(1, object_store_memory=store)
    wide = SmallWorld(clients=3, rows=(4000,), features=(1500,))
    assert wide.pool.x.nbytes > 1.5 * store  # type: ignore[attr-defined]
    settings = settings_for(catalog.fedavg(), wide, small_task(world=wide), participation=1.0,
                            batch=500, epochs=1)  # fmt: skip
    (_, _, here), (_, _, there) = (play(settings, e, 1) for e in (Stacked(), engine(workers=1)))
    assert torch.equal(here[-1], there[-1])


CONFIG = """
data: digits
model: {name: mlp, hidden: [16]}
world: {name: static, members: 12, rounds: %d, partition: iid}
local: {epochs: 1, lr: 0.1, batch: 8}
method: scaffold
evaluate: {every: 1}
engine: ray
ray: {address: %r}
checkpoint: {every: 1}
"""


def shoal(*words: str, **rest: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal", *words]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **both, **rest)


# Without a head the workers play on for 10 seconds: the run must be longer.
@pytest.mark.timeout(400)  # two clusters and three runs, which put each round on disk
@pytest.mark.parametrize(
    ("lost", "rounds_of", "told"),
    [("gcs_server", 2000, "the head of the cluster at"), ("", 200, "the Ray cluster is gone")],
)
def test_the_head_is_gone_and_the_run_goes_on_elsewhere(
    lost: str, rounds_of: int, told: str, nodes: Make, tmp_path: Path
) -> None:
    first = nodes(1, join=False)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % (rounds_of, first.address))
    run = shoal("run", str(config), "-o", str(tmp_path / "a"))
    until = time.monotonic() + 60
    rounds = tmp_path / "a" / "rounds.jsonl"
    while not (rounds.exists() and len(rounds.read_text().splitlines()) > 3):
        assert time.monotonic() < until and run.poll() is None, run.communicate()[0]
        time.sleep(0.1)
    for name, processes in first.head_node.all_processes.items():
        for one in processes if name in (lost or name) else ():
            os.kill(one.process.pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=40)
    assert run.returncode == 2, said
    assert told in said and f"shoal resume {tmp_path / 'a'}" in said
    assert "Traceback" not in said

    second = nodes(1, 1, join=False)
    again = shoal("resume", str(tmp_path / "a"), "--set", f"ray.address={second.address}",
                  "--set", "ray.workers=2")  # fmt: skip
    assert again.wait(180) == 0, again.communicate()[0]
    alone = config.read_text().replace("ray: {", "# ray: {").replace("engine: ray", "engine: auto")
    config.write_text(alone)
    assert shoal("run", str(config), "-o", str(tmp_path / "b")).wait(120) == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]


@pytest.mark.timeout(240)
def test_the_head_is_killed_and_started_again(nodes: Make, tmp_path: Path) -> None:
    """At the same address: the run goes on without another word."""
    first = nodes(1, join=False)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % (200, first.address))
    run, rounds = shoal("run", str(config), "-o", str(tmp_path / "a")), tmp_path / "a/rounds.jsonl"
    until = time.monotonic() + 60
    while not (rounds.exists() and len(rounds.read_text().splitlines()) > 3):
        assert time.monotonic() < until and run.poll() is None, run.communicate()[0]
        time.sleep(0.1)
    for processes in first.head_node.all_processes.values():
        for one in processes:
            os.kill(one.process.pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=40)
    assert run.returncode == 2 and "Traceback" not in said, said
    played = len(rounds.read_text().splitlines())
    assert played < 200
    second = nodes(1, join=False, gcs_server_port=int(first.address.rpartition(":")[2]))
    assert second.address == first.address
    again = shoal("resume", str(tmp_path / "a"))
    assert again.wait(90) == 0, again.communicate()[0]
    numbers = [json.loads(line)["round"] for line in rounds.read_text().splitlines()]
    assert numbers == list(range(200))
    alone = config.read_text().replace("ray: {", "# ray: {").replace("engine: ray", "engine: auto")
    config.write_text(alone)
    assert shoal("run", str(config), "-o", str(tmp_path / "b")).wait(60) == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]
