"""Sweeps whose runs are played on nodes: shared storage, none, a node that is lost, a stop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.config.schema import from_mapping
from shoal.runs.cluster.connect import Cluster
from shoal.runs.directory import RunDir
from shoal.runs.sweep import Event, on_ray, play_all
from shoal.runs.sweep.on_ray import play_on, token_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
Make = Callable[..., Any]


def values(seed: int, rounds: int, **more: Any) -> dict[str, Any]:
    world = {"name": "static", "members": 6, "rounds": rounds, "partition": "iid"}
    return {"data": "digits", "model": {"name": "mlp", "hidden": [8]}, "world": world,
            "local": {"epochs": 1, "lr": 0.1, "batch": 16}, "method": "scaffold", "seed": seed,
            "evaluate": {"every": 50}, "checkpoint": {"every": 5}, **more}  # fmt: skip


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An input that does not end."""
    read, write = os.pipe()
    with os.fdopen(read) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield
    os.close(write)


@pytest.mark.parametrize("shared", [True, False])
def test_a_node_is_lost_and_its_runs_go_on(
    shared: bool, nodes: Make, tmp_path: Path, endless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without shared storage: from what came back last."""
    monkeypatch.setattr(on_ray, "SENT_BACK", 0.3)
    if not shared:  # what the nodes look for is not there
        monkeypatch.setattr(on_ray, "token_file", lambda root: tmp_path / "elsewhere")
    cluster = nodes(1, join=False)
    lost = cluster.add_node(num_cpus=1)
    runs = {f"s{seed}": values(seed, 400) for seed in range(3)}
    root, told, removing = tmp_path / "runs", list[Event](), threading.Event()
    root.mkdir()

    def tell(event: Event) -> None:
        told.append(event)
        if event.round >= 100 and not removing.is_set():
            removing.set()
            threading.Thread(target=cluster.remove_node, args=(lost, False)).start()

    play_on(Cluster(address=cluster.address, workers=2), root, runs, None, tell)
    assert removing.is_set() and not token_file(root).exists()
    assert sorted(e.run for e in told if e.status == "finished") == sorted(runs)
    again = [b for a, b in zip(told, told[1:], strict=False) if a.run == b.run
             and b.round < a.round and b.status is None and b.round]  # fmt: skip
    assert all(event.round > 5 for event in again), "a run that was lost began anew"
    configs = {name: from_mapping(own) for name, own in runs.items()}
    assert all(o.fine for o in play_all(configs, tmp_path / "here").values())
    for name in runs:
        one, other = (folder / name / "model.safetensors" for folder in (root, tmp_path / "here"))
        assert one.read_bytes() == other.read_bytes()


def test_stopped_by_a_budget_and_gone_on_with(nodes: Make, tmp_path: Path) -> None:
    cluster = Cluster(address=nodes(1, join=False).address)
    configs = {"a": from_mapping(values(0, 10**6)), "b": from_mapping(values(1, 5))}
    outcomes = play_all(configs, tmp_path, seconds=14, on=cluster)
    assert {o.status for o in outcomes.values()} == {"stopped"}
    assert RunDir(tmp_path / "a").is_run and not RunDir(tmp_path / "a").finished
    short = {"b": configs["b"]}
    assert play_all(short, tmp_path, on=cluster)["b"].status == "finished"


def test_a_run_that_fails_does_not_stop_others(nodes: Make, tmp_path: Path) -> None:
    address = nodes(1, join=False).address
    configs = {
        "bad": from_mapping(values(0, 2, data="nowhere")),
        "good": from_mapping(values(1, 2)),
    }
    outcomes = play_all(configs, tmp_path, on=Cluster(address=address))
    assert outcomes["good"].fine and "nowhere" in outcomes["bad"].text
    on_engine = {"ray": from_mapping(values(0, 2, engine="ray"))}
    told = play_all(on_engine, tmp_path, on=Cluster(address=address))["ray"]
    assert told.status == "failed" and "leave engine out" in told.text


@pytest.mark.parametrize("more", [[], ["--working-dir", "."]])
def test_the_command_with_own_code(more: list[str], nodes: Make, tmp_path: Path) -> None:
    """Where nodes see the folder they get a copy of, its modules are not there twice."""
    net = "from torch import nn\ndef net(shape, classes):\n    return nn.Linear(64, classes)\n"
    (tmp_path / "own_nets.py").write_text(net)
    own = values(0, 5, model={"name": "own_nets:net"})
    (tmp_path / "sweep.yaml").write_text(f"base: {own}\ngrid: {{seed: [0, 1]}}\n")
    words = ["sweep", "sweep.yaml", "-o", "out", "--on", nodes(2, join=False).address, *more]
    command = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(RunDir(tmp_path / "out" / f"seed{n}").finished for n in (0, 1)), done.stdout


def test_nobody_at_the_address(tmp_path: Path) -> None:
    began = time.monotonic()
    found = play_all({"a": from_mapping(values(0, 1))}, tmp_path, on=Cluster("127.0.0.1:1"))
    assert time.monotonic() - began < 20
    assert "ray.address: nobody answers at 127.0.0.1:1" in found["a"].text
