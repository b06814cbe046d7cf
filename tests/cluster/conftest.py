"""Clusters of several nodes on this machine, one process tree a node. ``make test-ray`` gives them
a network of their own that has loopback only: Ray puts the machine's address for 127.0.0.1."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from shoal.runs.cluster.connect import Cluster
from shoal.runs.cluster.ray import Ray

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray's workers give way to every other process of the machine: beside others they would starve.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - so Ray reads it
if find_spec("ray") is None:  # an extra: pip install 'shoal[ray]'
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # as shoal imports it
    import ray

    del os.environ["RAY_ENABLE_AUTO_CONNECT"]
    from ray.cluster_utils import Cluster as Nodes

Made = Callable[..., Any]


@pytest.fixture(scope="module")
def started() -> Iterator[Made]:
    """``started(2, 1, 1)``: nodes with so many cores each, the head first, joined by this process
    unless ``join=False``."""
    running: list[Nodes] = []

    def start(*cores: int, join: bool = True, **of_each: Any) -> Nodes:
        # A free port for its agent, which takes jobs: one whose node was killed keeps its own.
        free = {"include_dashboard": False, "dashboard_agent_listen_port": 0}
        head = {"num_cpus": cores[0], **free, **of_each}
        nodes = Nodes(initialize_head=True, head_node_args=head)
        running.append(nodes)
        for own in cores[1:]:
            nodes.add_node(num_cpus=own, **of_each)
        if join:
            ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        return nodes

    yield start
    ray.shutdown()
    for nodes in running:
        nodes.shutdown()


@pytest.fixture
def nodes(started: Made) -> Iterator[Made]:
    """The same, for one test alone."""
    alone: list[Nodes] = []

    def start(*cores: int, **rest: Any) -> Nodes:
        alone.append(started(*cores, **rest))
        return alone[-1]

    yield start
    ray.shutdown()
    for made in alone:
        made.shutdown()


@pytest.fixture
def engine() -> Iterator[Callable[..., Ray]]:
    """``engine(workers=2)``: an engine that is closed in the end."""
    made: list[Ray] = []

    def make(**settings: Any) -> Ray:
        made.append(Ray(Cluster(**settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def closed() -> int:
    """A port where nobody listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port
