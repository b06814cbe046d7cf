"""What goes wrong in a real federation, inside one process: each case takes milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flower.local_grid import Small, agreement, rows_of

from shoal.core.errors import UserError
from shoal.flower import messages
from shoal.flower.agreement import Bounds
from shoal.flower.messages import TrainReply
from shoal.flower.node.node import Node
from shoal.flower.node.own_data import NodeData


def scaled(factor: float) -> Callable[[TrainReply], TrainReply]:
    return lambda done: replace(done, delta=done.delta * factor)


BAD: dict[str, tuple[Callable[[TrainReply], TrainReply], str]] = {
    "nan": (lambda d: replace(d, delta=d.delta * float("nan")), "not finite"),
    "far": (scaled(1000.0), "bounds.norm"),
    "farther than others": (scaled(30.0), "times the median"),
    "long": (lambda d: replace(d, delta=d.delta.repeat(10)), "shape"),
    "longer": (lambda d: replace(d, delta=torch.zeros(200_000)), "bytes"),
    "heavy": (lambda d: replace(d, count=1e9), "a weight of"),
    "other": (lambda d: replace(d, payloads=((), ())), "another method"),
    "as another": (lambda d: replace(d, member=0), "another member's name"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_upload_is_refused_by_name(tmp_path: Path, case: str) -> None:
    twist, reason = BAD[case]
    small = Small(tmp_path)
    small.grid.nodes[103].twist = twist
    server = small.server()
    server.play()
    refused = small.events("refused")
    assert len(refused) == 3 and all("node-3" in text and reason in text for text in refused)
    assert small.members()["node-3"]["refused_rate"] == 1.0
    assert small.members()["node-2"]["counts"]["accepted"] == 3
    assert bool(server.federation.models[0].theta.isfinite().all())


def test_bad_payload_of_a_method_that_sends_one(tmp_path: Path) -> None:
    small = Small(tmp_path, "scaffold")
    small.grid.nodes[101].twist = lambda d: replace(d, payloads=(torch.zeros(3),))
    small.server().play()
    assert all("another form" in text for text in small.events("refused"))
    assert small.members()["node-1"]["counts"]["refused"] == 3


def replayed(first: list[tuple[bytes, bytes]]) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Every upload after the first is the first once more."""

    def twist(frame: bytes, signature: bytes) -> tuple[bytes, bytes]:
        if not isinstance(messages.unpack(frame, 1 << 30), TrainReply):
            return frame, signature
        first.append((frame, signature))
        return first[0]

    return twist


TWISTS: dict[str, tuple[Callable[[bytes, bytes], tuple[bytes, bytes]], str]] = {
    "noise": (lambda frame, signature: (b"\x00" * 50, signature), "not a frame"),
    "unsigned": (lambda frame, signature: (frame, b""), "not signed"),
    "changed": (lambda frame, signature: (frame[:-1] + b"\x07", signature), "not signed"),
    "replayed": (replayed([]), "replayed"),
}


@pytest.mark.parametrize("case", TWISTS)
def test_bytes_that_are_not_the_members_answer(tmp_path: Path, case: str) -> None:
    twist, reason = TWISTS[case]
    small = Small(tmp_path)
    server = small.server()
    small.after(server, 0, lambda: small.grid.twists.update({102: twist}))
    server.play()
    refused = small.events("refused")
    assert refused and all("node-2" in text and reason in text for text in refused)


def test_stranger_is_refused(tmp_path: Path) -> None:
    small = Small(tmp_path)
    stranger = small.grid.nodes[104]
    small.grid.nodes[999] = Node(
        small.what, stranger.data, small.keys[7], "node-4", tmp_path / "home-x"
    )
    small.server().play()
    assert len(small.events("stranger")) == 1
    assert set(small.members()) == {f"node-{i}" for i in range(5)}


def test_wrong_key_behind_a_registered_node(tmp_path: Path) -> None:
    """Flower vouches for one key, the node signs with another."""
    small = Small(tmp_path)
    right = small.grid.nodes[104].key
    small.grid.nodes[104].key = small.keys[7]
    nodes = small.grid.get_nodes

    def claimed() -> list[Any]:
        found = list(nodes())
        for node in found:
            node.public_key = right.public if node.node_id == 104 else node.public_key
        return found

    small.grid.get_nodes = claimed  # type: ignore[method-assign]
    small.server().play()
    assert any("node-4" in t and "not signed" in t for t in small.events("refused"))
    assert "accepted" not in small.members()["node-4"]["counts"]


def test_departure_and_return_are_sessions(tmp_path: Path) -> None:
    small = Small(tmp_path, ["scaffold", {"dynamic_init": {"R": 10}}])
    server = small.server(num_server_rounds=6)
    small.after(server, 1, lambda: small.grid.down.add(101))
    small.after(server, 3, lambda: small.grid.down.clear())
    server.play()
    sessions = [server.world.at(round).session for round in range(6)]
    assert sessions == [0, 0, 1, 1, 2, 2]
    assert server.world.at(2).members == (0, 2, 3, 4)
    assert any("node-1 came back as member 1" in text for text in small.events("arrival"))


def test_session_whose_first_round_fails_still_begins(tmp_path: Path) -> None:
    small = Small(tmp_path)
    server = small.server(num_server_rounds=4)
    event = server.log.event

    def sick(twist: Callable[[TrainReply], TrainReply] | None) -> None:
        small.grid.down.add(101)
        for node in small.grid.nodes.values():
            node.twist = twist

    def noted(kind: str, text: str, **more: Any) -> None:
        event(kind, text, **more)
        if kind == "abandoned":
            sick(None)

    server.log.event = noted  # type: ignore[method-assign]
    small.after(server, 1, lambda: sick(scaled(float("nan"))))
    server.play()
    assert len(small.events("abandoned")) == 1 and len(small.events("session")) == 2
    assert [server.world.at(round).session for round in range(4)] == [0, 0, 1, 1]
    assert server.world.at(2).shift is not None


def test_settle_waits_for_a_change_to_last(tmp_path: Path) -> None:
    small = Small(tmp_path)
    server = small.server(num_server_rounds=6, stable_rounds=1)
    small.after(server, 1, lambda: small.grid.down.add(101))
    small.after(server, 2, lambda: small.grid.down.clear())
    small.after(server, 3, lambda: small.grid.down.add(104))
    server.play()
    assert [server.world.at(r).session for r in range(6)] == [0, 0, 0, 0, 0, 1]
    assert [len(server.world.at(r).members) for r in range(6)] == [5, 5, 4, 5, 4, 4]


def test_straggler_is_cut_and_its_late_reply_dropped(tmp_path: Path) -> None:
    small = Small(tmp_path)
    server = small.server(num_server_rounds=5)
    small.after(server, 0, lambda: small.grid.mute.add(102))

    def back() -> None:
        small.grid.mute.clear()
        small.grid.release()

    small.after(server, 2, back)
    server.play()
    assert any("node-2 did not answer in time" in text for text in small.events("departure"))
    assert any("node-2" in text and "dropped" in text for text in small.events("late"))
    assert any("node-2 came back" in text for text in small.events("arrival"))
    assert small.members()["node-2"]["counts"]["accepted"] == 3
    assert small.members()["node-2"]["counts"]["late"] == 1


@pytest.mark.parametrize("method", ["fedagg", "hypcluster"])
def test_silent_member_does_not_stop_a_question(tmp_path: Path, method: str) -> None:
    """A method that asks everybody goes on without whoever does not answer."""
    small = Small(tmp_path, method)
    server = small.server()
    small.after(server, 0, lambda: small.grid.mute.add(102))
    server.play()
    assert server.federation.round == 3
    assert any("node-2" in text for text in small.events("silent") + small.events("departure"))


def test_empty_federation_waits_without_spinning(tmp_path: Path) -> None:
    small = Small(tmp_path, members=5)
    small.grid.down.update(small.grid.nodes)
    server, naps = small.server(), list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 12:
            small.grid.down.clear()

    server.sleep = nap
    server.play()
    assert sum(naps[:12]) > 20 and small.grid.looks < 20
    assert small.events("waiting") == ["waiting for members: 0 of at least 3 are here"]
    assert server.federation.round == 3


def test_model_that_goes_bad_is_taken_back(tmp_path: Path) -> None:
    """All members push the model the wrong way in one round; they themselves say so."""
    rule = {"epochs": 8, "batch": 4, "rate": 0.3}
    small = Small(tmp_path, local=rule, bounds=Bounds(norm=1000.0))
    server = small.server(num_server_rounds=8, rollback=0.15)

    def bad(active: bool) -> None:
        for node in small.grid.nodes.values():
            node.twist = scaled(-30.0) if active else None

    small.after(server, 3, lambda: bad(True))
    small.after(server, 4, lambda: bad(False))
    server.play()
    (text,) = small.events("rollback")
    assert text.startswith("round 5:") and "going back" in text
    kept = {path.name for path in (tmp_path / "server" / "models").iterdir()}
    assert "round-0005-dropped.safetensors" in kept and len(kept) == 2
    lines = (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()
    scores = [json.loads(line)["received"]["accuracy"] for line in lines]
    assert scores[6] > scores[5] + 0.15 and scores[6] == max(scores[:6])


def test_server_killed_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    """Members keep their memories, the server its checkpoint: the weights are the same."""
    method = ["scaffold", "fedinit"]
    whole = Small(tmp_path / "a", method, participation=3)
    undisturbed = whole.server(num_server_rounds=5)
    undisturbed.play()
    small = Small(tmp_path / "b", method, participation=3)
    server = small.server(num_server_rounds=5)

    def die() -> None:
        raise KeyboardInterrupt

    small.after(server, 2, die)
    with pytest.raises(KeyboardInterrupt):
        server.play()
    for member in range(5):  # every node is restarted too
        node = small.grid.nodes[100 + member]
        fresh = Node(small.what, node.data, node.key, node.name, node.home)
        small.grid.nodes[100 + member] = fresh
    again = small.server(num_server_rounds=5)
    again.play()
    assert small.events("resumed") == ["the server goes on after round 2"]
    expected, found = (s.federation.models[0].theta for s in (undisturbed, again))
    assert torch.equal(expected, found)
    assert [again.world.at(r).session for r in range(5)] == [0] * 5


def test_refused_upload_leaves_the_members_memory_as_it_was(tmp_path: Path) -> None:
    """A member goes on from the memories of its last accepted upload."""
    small = Small(tmp_path, "scaffold")
    server = small.server(num_server_rounds=3)
    small.after(server, 0, lambda: setattr(small.grid.nodes[103], "twist", scaled(float("nan"))))
    server.play()
    store = server.federation.store
    first = {int(store.get(member, 0)[0][0]) for member in (3,)}  # type: ignore[index]
    others = {int(store.get(member, 0)[0][0]) for member in (0, 1, 2, 4)}  # type: ignore[index]
    assert len(others) == 1 and not first & others


def test_node_of_another_agreement_says_so(tmp_path: Path) -> None:
    small = Small(tmp_path)
    other = agreement("scaffold")
    node = small.grid.nodes[101]
    small.grid.nodes[101] = Node(other, node.data, node.key, node.name, tmp_path / "other")
    small.server().play()
    assert any("another federation.yaml" in text for text in small.events("refused"))


def test_two_servers_do_not_share_a_directory(tmp_path: Path) -> None:
    small = Small(tmp_path)
    first = small.server()
    with pytest.raises(UserError, match="is in use by process"):
        small.server()
    first.play()
    assert small.server(num_server_rounds=3).federation.round == 3


def test_members_of_other_sizes_are_padded_to_the_largest(tmp_path: Path) -> None:
    """The server learns of sizes with the first members, long after it was made."""
    small = Small(tmp_path, members=3)
    small.grid.nodes[101].data = NodeData(rows_of(1, 9), None)
    server = small.server(num_server_rounds=1)
    server.play()
    assert server.settings.pad == server.world.pad == 12
