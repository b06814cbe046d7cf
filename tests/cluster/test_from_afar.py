"""Runs that are started from elsewhere: over Ray's client, and as a job."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.core.errors import LostMachinesError
from shoal.engines.stacked.engine import Stacked
from shoal.runs.cluster.ray import Ray
from shoal.runs.directory import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
Make = Callable[..., Any]
HERE = str(Path(__file__).parents[2])
CONFIG = """
data: digits
model: {name: mlp, hidden: [16]}
world: {name: static, members: 12, rounds: 5, partition: iid}
local: {epochs: 1, lr: 0.1, batch: 8}
method: scaffold
evaluate: {every: 1}
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client does not send the driver's path: nodes have a shoal of their own. Its server
    forks, which now and then fails where gRPC has handlers for that."""
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *([known] if known else [])]))


def test_over_rays_client(nodes: Make, engine: Make, closed: int) -> None:
    world = SmallWorld(clients=8)
    settings = settings_for(catalog.scaffold(), world, small_task(world=world), participation=1.0)
    cluster = nodes(1, join=False, ray_client_server_port=closed)
    cluster.add_node(num_cpus=1)
    alone = play(settings, Stacked(), 3)[2][-1]
    made: Ray = engine(address=f"ray://127.0.0.1:{closed}", workers=2)
    assert torch.equal(play(settings, made, 3)[2][-1], alone)
    assert len({hand.node for hand in made.crew.ready}) == 2
    assert made._connection.head == ("127.0.0.1", closed)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    assert torch.equal(play(settings, made, 3)[2][-1], alone)

    for processes in cluster.head_node.all_processes.values():
        for one in processes:
            os.kill(one.process.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(LostMachinesError, match=f"(head|connection) .*127.0.0.1:{closed} is gone"):
        while True:
            play(settings, made, 3)
    made.close()
    assert time.monotonic() - began < 40


def test_as_a_job(nodes: Make, tmp_path: Path, closed: int) -> None:
    """``ray job submit``: the cluster is known, the exit code is the job's."""
    nodes(2, join=False, include_dashboard=True, dashboard_port=closed)
    (tmp_path / "config.yaml").write_text(CONFIG)

    def submitted(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "job", "submit"),
            *("--address", f"http://127.0.0.1:{closed}", "--working-dir", str(tmp_path), "--"),
            *(sys.executable, "-m", "shoal", "run", "config.yaml", "-o", str(out), *more),
        ]
        until = time.monotonic() + 40
        while True:  # Ray takes jobs some seconds after its head is there
            done = subprocess.run(command, capture_output=True, text=True, timeout=80)
            if "No available agent" not in done.stdout + done.stderr or time.monotonic() > until:
                return done
            time.sleep(1)

    done = submitted(tmp_path / "there", "--engine", "ray")
    assert done.returncode == 0 and "succeeded" in done.stdout, done.stdout + done.stderr
    assert re.search("on engine ray", done.stdout), done.stdout
    here = [sys.executable, "-m", "shoal", "run", str(tmp_path / "config.yaml")]
    subprocess.run([*here, "-o", str(tmp_path / "here")], check=True, capture_output=True)
    models = [tmp_path / name / "model.safetensors" for name in ("here", "there")]
    assert RunDir(tmp_path / "there").finished
    assert models[0].read_bytes() == models[1].read_bytes()

    wrong = submitted(tmp_path / "wrong", "--set", "local.lr=fast")
    assert wrong.returncode != 0 and "local.lr must be a number" in wrong.stdout, wrong.stdout
