"""What version 0.1 stored is read: runs, members' memories, frames (made by ``make_0_1.py``)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import content

from shoal.core import tree
from shoal.methods.parts.gradients import Variate
from shoal.methods.parts.loss_terms import Dual
from shoal.methods.parts.session_starts import SessionHistory
from shoal.runs import checkpoint

pytest.importorskip("flwr")

from flower.local_grid import LocalGrid, add_nodes, agreement, serve, some_keys
from states.make_0_1 import HERE, MEMBERS, METHOD, end_of_federation, end_of_run

from shoal.flower import messages, wire
from shoal.flower.messages import OrderMessage, Refusal, TrainReply
from shoal.flower.node.node import MemoryDisk, StoredMemories
from shoal.flower.wire import WireError, state_types

ENDS: dict[str, list[float]] = json.loads((HERE / "ends.json").read_text())
LIMIT = 1 << 20
WORDS = state_types(agreement(METHOD).plan().settings.method)


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE, tmp_path / "old"))


def test_everything_in_a_checkpoint_comes_back(tmp_path: Path) -> None:
    where = copied(tmp_path) / "run" / "checkpoint"
    manifest = json.loads(json.loads((where / "00000004" / "manifest.json").read_text())["body"])
    assert manifest["format"] == 1 and "shoal.parts.session:Sessions" in json.dumps(manifest)
    there: dict[str, Any] = {}
    for file in (where / "00000004").glob("*.safetensors"):
        there |= load_file(file)
    saved = checkpoint.load(where, {manifest["config"]}, "cpu")
    assert saved is not None
    kinds = [type(state) for state in saved.federation.servers[0]]
    assert kinds == [Variate, Dual, SessionHistory]
    entries = dict(saved.federation.store.entries())
    pairs = [(saved.federation.servers[0], manifest["state"]["servers"][0])]
    pairs += [(entries[c, m], memory) for c, m, memory in manifest["state"]["memories"]]
    compared = 0
    for now, then in pairs:
        for leaf, name in zip(tree.leaves(now), _tensors(then), strict=True):
            assert torch.equal(leaf, there[name])
            compared += 1
    assert compared >= 15  # two parts on the server and six clients


def _tensors(frozen: Any) -> list[str]:
    if isinstance(frozen, str):
        return [frozen]
    inside = frozen.values() if isinstance(frozen, dict) else frozen or ()
    return [name for item in inside for name in _tensors(item)]


def rewritten(where: Path) -> None:
    """The same checkpoint under today's names."""
    old = next(path for path in where.iterdir() if path.name.isdigit())
    config = json.loads(json.loads((old / "manifest.json").read_text())["body"])["config"]
    saved = checkpoint.load(where, {config}, "cpu")
    assert saved is not None
    shutil.move(old, where / "old")
    checkpoint.save(where, saved.federation, saved.lengths, config)
    shutil.rmtree(where / "old")
    text = (where / old.name / "manifest.json").read_text()
    assert "scaffold.variate" in text and "shoal." not in text


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    old, new = copied(tmp_path / "a"), copied(tmp_path / "b")
    rewritten(new / "run" / "checkpoint")
    end = end_of_run(old / "run")
    assert end == end_of_run(new / "run")
    # bits are one machine's; double precision and a dozen steps leave little else
    assert end == pytest.approx(ENDS["run"], abs=1e-12)
    assert content(old / "run") == content(new / "run")


def test_a_federation_goes_on_with_its_members_memories(tmp_path: Path) -> None:
    old, new, blank = (copied(tmp_path / name) for name in "abc")
    rewritten(new / "server" / "checkpoint")
    for member in MEMBERS:
        disk = MemoryDisk(new / f"home-{member}" / "memory", WORDS)
        for file in list(disk.folder.iterdir()):
            kept = disk.get(int(file.stem))
            assert kept is not None and wire.of_0_1(file.read_bytes())
            disk.put(int(file.stem), kept)
            assert not wire.of_0_1(file.read_bytes())
        shutil.rmtree(blank / f"home-{member}" / "memory")
    end = end_of_federation(old)
    assert end == end_of_federation(new)
    assert end == pytest.approx(ENDS["federation"], abs=1e-5)  # single precision
    lost = end_of_federation(blank)
    assert max(abs(a - b) for a, b in zip(end, lost, strict=True)) > 1e-3


# ---- frames --------------------------------------------------------------------------------------
def test_a_members_memories() -> None:
    folder = HERE / "home-1" / "memory"
    file = next(folder.iterdir())
    kept = MemoryDisk(folder, WORDS).get(int(file.stem))
    assert isinstance(kept, StoredMemories) and [type(m) for m in kept.memories[:2]] == [
        Variate,
        Dual,
    ]


def test_an_upload_and_an_order() -> None:
    upload = messages.unpack((HERE / "upload.frame").read_bytes(), LIMIT, WORDS)
    assert isinstance(upload, TrainReply) and isinstance(upload.payloads[0], Variate)
    order = messages.unpack((HERE / "order.frame").read_bytes(), LIMIT, WORDS)
    assert isinstance(order, OrderMessage) and isinstance(order.sent[0], Variate)
    again = messages.unpack(messages.pack(upload), LIMIT, WORDS)
    assert isinstance(again, TrainReply) and torch.equal(again.payloads[0].c, upload.payloads[0].c)
    assert torch.equal(again.delta, upload.delta) and b"shoal." not in messages.pack(upload)


def test_a_name_of_0_1_means_nothing_where_the_method_lacks_it() -> None:
    words = state_types(agreement("fedavg").plan().settings.method)
    with pytest.raises(WireError, match="does not use"):
        messages.unpack((HERE / "upload.frame").read_bytes(), LIMIT, words)


def test_a_server_of_0_1_is_told(tmp_path: Path) -> None:
    grid, what = LocalGrid(), agreement(METHOD)
    add_nodes(grid, what, tmp_path, (0,), some_keys(tmp_path, 1))
    for blob in ((HERE / "order.frame").read_bytes(), (HERE / "home-0" / "hello").read_bytes()):
        reply, _ = grid.nodes[100].reply(blob)
        assert reply.startswith(b"SHOAL1")  # or it could not read why
        sorry = messages.unpack(reply, LIMIT)
        assert isinstance(sorry, Refusal) and "server's shoal is older" in sorry.reason


def test_a_member_of_0_1_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    grid, what, said = LocalGrid(), agreement(METHOD), list[str]()
    add_nodes(grid, what, tmp_path, (0, 1, 2), some_keys(tmp_path, 3))
    old = grid.nodes[101]

    def reply(blob: bytes) -> tuple[bytes, bytes]:
        """What version 0.1 answers to any other frame than its own."""
        assert not blob.startswith(b"SHOAL1")
        packed = messages.pack(Refusal("", "not a frame of this version"), wire.MAGIC_0_1)
        return packed, old.key.sign(packed)

    old.reply = reply  # type: ignore[method-assign]
    server = serve(grid, what, tmp_path, said, num_server_rounds=1, start_members=2)
    server.play()
    assert server.federation.round == 1 and set(server.online.here) == {0, 2}
    told = [text for text in said if "the member's shoal is older than the server's" in text]
    assert len(told) == 1 and "node-1" in told[0]


def test_the_data_are_of_0_1() -> None:
    """Made anew by code that has registered names they would prove nothing."""
    for file in (*HERE.glob("*.frame"), *HERE.glob("home-*/*/*.kept"), *HERE.glob("home-*/hello")):
        assert wire.of_0_1(file.read_bytes()), file
