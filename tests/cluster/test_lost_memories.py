"""Memories on nodes that are lost come from their second copies; checkpoints hold all of them."""

from __future__ import annotations

import os
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
from shoal.engines.stacked import plan
from shoal.engines.stacked.engine import Stacked
from shoal.rounds.state import Settings
from shoal.runs.cluster import crew
from shoal.runs.cluster.ray import Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Make = Callable[..., Any]
WIDE = SmallWorld(clients=41, features=(6000,))  # 72 KB a client


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LATER", 60.0)
    monkeypatch.setattr(plan, "MILLISECOND", 300_000)


def settings_of(name: str) -> Settings:
    task = small_task(world=WIDE)
    return settings_for(catalog.METHODS[name](), WIDE, task, participation=1.0, epochs=1)


def until_nodes_are(made: Ray, count: int) -> None:
    until = time.monotonic() + 60
    while len(made.crew.nodes) > count and time.monotonic() < until:
        made.crew.tend()
        time.sleep(0.1)
    assert len(made.crew.nodes) == count


def test_a_lost_nodes_memories_are_restored(nodes: Make, engine: Make) -> None:
    cluster = nodes(1)
    lost = [cluster.add_node(num_cpus=1) for _ in range(2)]
    made: Ray = engine()
    settings = settings_of("scaffold")
    assert len(made.crew.ready) == 3
    train, rounds = made.train, list[int]()

    def losing(order: Any) -> Any:
        rounds.append(order.round)
        if len(rounds) == 3:
            cluster.remove_node(lost[0], allow_graceful=False)
            until_nodes_are(made, 2)
        return train(order)

    made.train = losing  # type: ignore[method-assign]
    federation, _, there = play(settings, made, 4)
    one, _, here = play(settings, Stacked(), 4)
    assert all(map(torch.equal, here, there)) and len(rounds) == 4
    assert any("copied again from the second copies" in note for note in made.notes)
    assert all(len({copy.node for copy in block.copies}) == 2 for block in made._keeper._blocks)
    # then a second one: what is left of them comes to this machine's disk
    cluster.remove_node(lost[1], allow_graceful=False)
    until_nodes_are(made, 1)
    for block in made._keeper.short_of(made.crew.nodes):
        made._keeper.save(block)
    for (key, a), (other, b) in zip(one.store.items(), federation.store.items(), strict=True):
        assert key == other and all(map(torch.equal, a[0], b[0]))


def test_a_node_is_lost_before_its_memories_are_copied(nodes: Make, engine: Make) -> None:
    """The round waits for both copies; if there was none yet, the share is done again."""
    cluster = nodes(1)
    lost = cluster.add_node(num_cpus=1)
    made: Ray = engine()
    answered, gone = made.crew.answered, list[str]()

    def losing(hand: Any, index: int, answer: Any) -> Any:
        if hand.node == lost.node_id and answer.kept is not None and not gone:
            gone.append(hand.node)
            cluster.remove_node(lost, allow_graceful=False)
        return answered(hand, index, answer)

    made.crew.answered = losing  # type: ignore[method-assign]
    settings = settings_of("scaffold")
    federation, _, there = play(settings, made, 3)
    one, _, here = play(settings, Stacked(), 3)
    assert gone and all(map(torch.equal, here, there))
    assert any("is gone" in note for note in made.notes), list(made.notes)
    for (key, a), (other, b) in zip(one.store.items(), federation.store.items(), strict=True):
        assert key == other and all(map(torch.equal, a[0], b[0]))


def test_two_nodes_lost_at_once_are_told(nodes: Make, engine: Make) -> None:
    cluster = nodes(1)
    lost = [cluster.add_node(num_cpus=1) for _ in range(2)]
    made: Ray = engine()
    federation, _, _ = play(settings_of("scaffold"), made, 2)
    assert len(federation.store) == 41  # it is what holds the blocks
    for node in lost:
        cluster.remove_node(node, allow_graceful=False)
    until_nodes_are(made, 1)
    with pytest.raises(LostMachinesError, match=r"both nodes with the memories of \d+ clients"):
        made._keeper.short_of(made.crew.nodes)


CONFIG = """
data: digits
model: {name: mlp, hidden: [256]}
world: {name: static, members: 12, rounds: %d, partition: iid}
local: {epochs: 1, lr: 0.1, batch: 8}
method: scaffold
evaluate: {every: 1}
engine: ray
ray: {address: %r}
checkpoint: {every: 5}
"""


def shoal(*words: str, **rest: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal", *words]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **both, **rest)


@pytest.mark.timeout(240)
def test_checkpoints_hold_what_is_on_the_nodes(nodes: Make, tmp_path: Path) -> None:
    """Killed, and gone on with on this machine alone."""
    cluster = nodes(1, 1, join=False)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % (40, cluster.address))
    run = shoal("run", str(config), "-o", str(tmp_path / "a"), start_new_session=True)
    rounds, until = tmp_path / "a" / "rounds.jsonl", time.monotonic() + 90
    while not (rounds.exists() and len(rounds.read_text().splitlines()) > 12):
        assert time.monotonic() < until and run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert len(rounds.read_text().splitlines()) < 40
    again = shoal("resume", str(tmp_path / "a"), "--engine", "stacked")
    assert again.wait(90) == 0, again.communicate()[0]
    alone = config.read_text().replace("ray: {", "# ray: {").replace("engine: ray", "engine: auto")
    config.write_text(alone)
    assert shoal("run", str(config), "-o", str(tmp_path / "b")).wait(90) == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]
