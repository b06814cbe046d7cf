"""Clusters that start machines when somebody asks for them (Ray's own pretended provider)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import ray
import torch
from support import SmallWorld, play, settings_for, small_task

from shoal import catalog
from shoal.engines.stacked.engine import Stacked
from shoal.runs.cluster.connect import answers
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
Make = Callable[..., Any]
# An empty head, and machines of one core: at most three.
NOTHING = ("file_mounts", "docker")
NO_STEPS = ("cluster_synced_files", "initialization_commands", "setup_commands",
            "head_setup_commands", "worker_setup_commands", "head_start_ray_commands",
            "worker_start_ray_commands")  # fmt: skip


def asked_of(address: str) -> dict[str, Any]:
    kinds = {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "small": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 3},
    }
    return {"cluster_name": "grows", "max_workers": 3, "head_node_type": "ray.head.default",
            "provider": {"type": "fake_multinode", "gcs_address": address,
                         "use_node_id_as_ip": True, "disable_node_updaters": True,
                         "disable_launch_config_check": True},
            "available_node_types": kinds, "upscaling_speed": 1.0, "idle_timeout_minutes": 5,
            "auth": {"ssh_user": "nobody"}, "file_mounts_sync_continuously": False,
            **{name: {} for name in NOTHING}, **{name: [] for name in NO_STEPS}}  # fmt: skip


@pytest.fixture
def empty(closed: int) -> Iterator[str]:
    """The address of a cluster without a core, which starts nodes as they are asked for."""
    address = f"127.0.0.1:{closed}"
    with TemporaryDirectory(prefix="ray") as short:  # sockets have short names
        file = Path(short) / "autoscaler.json"
        file.write_text(json.dumps(asked_of(address)))
        env = {**os.environ, "RAY_TMPDIR": short, "RAY_FAKE_CLUSTER": "1",
               "RAY_AUTH_MODE": "disabled", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}  # fmt: skip
        words = ["start", "--head", "--block", f"--port={closed}", "--num-cpus=0",
                 "--include-dashboard=false", f"--autoscaling-config={file}"]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        head = subprocess.Popen(command, env=env, **quiet)  # type: ignore[call-overload]
        until = time.monotonic() + 60
        while not answers(("127.0.0.1", closed)):
            assert time.monotonic() < until and head.poll() is None
            time.sleep(0.2)
        yield address
        ray.shutdown()
        started = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        head.wait(60)
        for process in psutil.wait_procs(started, 10)[1]:  # of nodes that outlive their head
            process.kill()


def test_an_autoscaler_starts_the_nodes_that_are_asked_for(empty: str, engine: Make) -> None:
    world = SmallWorld(clients=8)
    settings = settings_for(catalog.scaffold(), world, small_task(world=world), participation=1.0)
    made: Ray = engine(address=empty, workers=2)
    assert sum(node["Resources"].get("CPU", 0) for node in ray.nodes()) == 0
    alone = play(settings, Stacked(), 3)[2][-1]
    assert torch.equal(play(settings, made, 3)[2][-1], alone)
    until = time.monotonic() + 60
    while len(made.crew.ready) < 2 and time.monotonic() < until:
        assert torch.equal(play(settings, made, 3)[2][-1], alone)
    assert len({hand.node for hand in made.crew.ready}) == 2
    assert sum(node["Resources"].get("CPU", 0) for node in ray.nodes()) == 2
    told = [note for note in made.notes if "workers" in note]
    assert not told or "2 workers were asked for and" in told[0], told
