"""Rounds per second on loopback, beside Flower's own FedAvg on the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower.real import Real

from shoal.flower.operations.up import free_port

ROUNDS, NODES = 4, 2


def plain_rounds(real: Real) -> float:
    """Rounds per second of stock SuperNodes and FedAvg, the first round left out."""
    times = real.folder / "times.json"
    for index in range(NODES):
        home = real.place.node(index)
        command = ["flower-supernode", "--superlink", real.up.address]
        command += ["--root-certificates", str(real.place.authority)]
        command += ["--auth-supernode-private-key", str(home / "key")]
        command += ["--port", str(free_port()), "--node-config", f'data="{home / "data.npz"}"']
        real.federation.processes.start(f"supernode-{index}", command)
    app = Path(__file__).with_name("plain_app")
    real.federation.link.start(app, {"rounds": ROUNDS, "nodes": NODES, "times": str(times)})
    real.until(times.exists, "the end of plain Flower")
    found = json.loads(times.read_text())
    return (len(found) - 2) / float(found[-1] - found[1])


def our_rounds(real: Real) -> float:
    for index in range(NODES):
        real.node(index)
    real.start_run()
    real.until(lambda: real.place.finished, "the end")
    lines = (real.place.run / "rounds.jsonl").read_text().splitlines()[1:]
    return len(lines) / sum(json.loads(line)["seconds"] for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_not_slower_than_plain_flower(tmp_path: Path) -> None:
    """Both train and validate on every node in every round, over TLS with authentication."""
    settings = {"start-members": NODES, "deadline": 120.0}
    with Real(tmp_path / "ours", NODES, ROUNDS, **settings) as real:
        ours = our_rounds(real)
    with Real(tmp_path / "plain", NODES, ROUNDS, **settings) as real:
        plain = plain_rounds(real)
    print(f"\nshoal flower: {ours:.3f} rounds/s; plain Flower FedAvg: {plain:.3f} rounds/s")
    assert ours > plain
