"""Clients' memories past a budget go to disk: the same bits, bounded RAM, nothing half-written."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_runs import content
from torch import Tensor

from shoal.config import from_mapping
from shoal.core import machine
from shoal.core.errors import UserError
from shoal.core.types import Model
from shoal.rounds.client_memories import ClientStore, OnDisk
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs.run import DurableRun


class Kept(NamedTuple):
    v: Tensor
    more: tuple[Tensor, ...] = ()


class Other(NamedTuple):
    v: Tensor
    more: tuple[Tensor, ...] = ()


def memories(client: int, size: int = 100) -> tuple[Any, ...]:
    """Two parts of which the second has nothing but a number."""
    return (
        Kept(torch.full((size,), float(client)), (torch.tensor(client),)),
        (torch.tensor(True),),
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if one is None:
        return other is None
    return type(one) is type(other) and all(map(same, one, other)) and len(one) == len(other)


def filled(folder: Path | None, budget: int = 4000, clients: int = 50) -> ClientStore:
    store = ClientStore(folder, budget)
    for client in range(clients):
        store.put(client, 0, memories(client))
    return store


def test_what_comes_back_is_what_was_put(tmp_path: Path) -> None:
    store = filled(tmp_path / "m")
    assert len(store) == 50 and store.nbytes() == 50 * 409
    assert 0 < store.resident <= 2000, "half of the budget"
    assert len(list((tmp_path / "m").iterdir())) > 10
    for client in range(50):
        assert same(store.get(client, 0), memories(client))
    assert [key for key, _ in store.items()] == [(c, 0) for c in range(50)]
    assert all(same(found, memories(c)) for (c, _), found in store.items())
    assert store.get(50, 0) is None and store.known(range(48, 60), 0) == [48, 49]
    assert store.clients() == set(range(50)) and store.resident <= 2000, "reading keeps nothing"


def test_types_with_equal_fields_are_told_apart(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, 0)
    store.put(0, 0, (Kept(torch.ones(2)),))
    store.put(1, 0, (Other(torch.ones(2)),))
    assert type((store.get(0, 0) or ())[0]) is Kept and type((store.get(1, 0) or ())[0]) is Other


def test_copies_do_not_see_each_other(tmp_path: Path) -> None:
    store = filled(tmp_path)
    other = store.copy()
    other.put(0, 0, memories(70))
    other.forget_part(1)
    other.forget_model(1)
    assert same(store.get(0, 0), memories(0)) and same(store.get(1, 0), memories(1))
    assert same(other.get(0, 0), (memories(70)[0], None))
    assert other.nbytes() == 50 * 408 and store.nbytes() == 50 * 409
    other.forget_model(0)
    assert len(other) == other.resident == 0 and same(store.get(3, 0), memories(3))


def test_files_go_when_nobody_points_at_them(tmp_path: Path) -> None:
    store = filled(tmp_path)
    before = store.copy()
    for round in range(6):
        for client in range(50):
            store.put(client, 0, memories(client + round))
    written = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert same(before.get(7, 0), memories(7)), "a snapshot keeps its files"
    del before
    gc.collect()
    left = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert left < written and left < 4 * 50 * 409 + 60 * 200, "no more than twice what is alive"
    del store
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_mostly_dead_files_are_written_anew(tmp_path: Path) -> None:
    store = filled(tmp_path, clients=60)
    for client in range(60):
        if client % 5:  # four of five members of every file come back
            store.put(client, 0, memories(client))
    gc.collect()
    live: dict[Path, int] = {}
    for _, entry in store.entries():
        if isinstance(entry, OnDisk):
            live[entry.file.path] = live.get(entry.file.path, 0) + entry.form.nbytes
    assert sorted(live) == sorted(tmp_path.iterdir())
    poor = [path for path, alive in live.items() if 2 * alive < 409]
    assert len(poor) <= 1, "at most the rest of one file"
    assert all(same(store.get(c, 0), memories(c)) for c in range(60))


def test_what_a_killed_run_left_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "memories-00000000.safetensors").write_bytes(b"half of a fi")
    (tmp_path / ".memories-00000001.safetensors.new").write_bytes(b"")
    store = filled(tmp_path)
    assert all(same(store.get(c, 0), memories(c)) for c in range(50))
    names = {f.name for f in tmp_path.iterdir()}
    assert not any(name.startswith(".") for name in names)


def test_a_temporary_folder_goes_with_its_store() -> None:
    store = filled(None)
    folder = next(e.file.path.parent for _, e in store.entries() if isinstance(e, OnDisk))
    assert folder.is_dir()
    del store
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("linked", [True, False])
def test_a_checkpoint_links_files_and_gives_the_same_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("this file system has none")

    if not linked:
        monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setenv(machine.VARIABLE, "4000")
    model = Model(torch.zeros(3), torch.zeros(0))
    federation = Federation(model, [model], [()], filled(tmp_path / "memories"), round=1)
    federation.store.forget_part(1)
    wanted = dict(federation.store.items())
    checkpoint.save(tmp_path, federation, (0, 0), "x")
    shared = list((tmp_path / "00000001").glob("memories-*"))
    assert len(shared) > 10 and all((f.stat().st_nlink == 2) is linked for f in shared)
    del federation
    gc.collect()  # the run's own files are gone, the checkpoint's are not
    saved = checkpoint.load(tmp_path, "x", "cpu")
    assert saved is not None and saved.federation.store.resident <= 2000
    found = dict(saved.federation.store.items())
    assert list(found) == list(wanted) and all(same(found[k], wanted[k]) for k in wanted)
    shared[3].write_bytes(shared[3].read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="wrong checksum in memories-"):
        checkpoint.load(tmp_path, "x", "cpu")


SCAFFOLD: dict[str, Any] = {
    "problem": {"name": "quadratic", "sessions": 1, "rounds": 5, "clients": 30, "size": 1500},
    "participation": 12,
    "method": "scaffold",
    "engine": "loop",
    "checkpoint": {"every": 2},
}
VECTOR = 8 * 1500  # bytes of a variate


def test_ram_stays_below_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 120_000
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setenv(machine.VARIABLE, str(budget))
    before = _vectors()

    def watch(record: dict[str, Any], rounds: int) -> None:
        store = run.player.federation.store
        alive = _vectors() - before if record["round"] >= 3 else 0  # a slow count
        seen.append((store.resident, alive, len(store)))

    run = DurableRun.create(tmp_path / "a", from_mapping(SCAFFOLD))
    run.play(watch)
    assert seen[-1][2] * VECTOR > 2 * budget, "it would not have fitted"
    assert max(resident for resident, _, _ in seen) <= budget // 2
    # every tensor of a variate's size that is alive, the models and server states included
    assert 0 < max(alive for _, alive, _ in seen) * VECTOR <= budget


def _vectors() -> int:
    """Tensors of a variate's size, each storage once; garbage is left out."""
    gc.collect()
    found = (o for o in gc.get_objects() if type(o) is Tensor and o.numel() * 8 == VECTOR)
    return len({tensor.untyped_storage().data_ptr() for tensor in found})


def test_spilling_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_mapping(SCAFFOLD)
    DurableRun.create(tmp_path / "plain", config).play()
    monkeypatch.setenv(machine.VARIABLE, "60000")
    DurableRun.create(tmp_path / "spilled", config).play()
    assert content(tmp_path / "plain") == content(tmp_path / "spilled")


KILLED = """
import json, os, signal, sys
from pathlib import Path
from shoal.rounds import client_memories as store_files
from shoal.config import from_mapping
from shoal.runs.run import DurableRun as Run

write = store_files.write_bytes

def die(path, content):
    if list(Path(sys.argv[1]).glob("checkpoint/0000*")):  # in the first file after a checkpoint
        path.with_name(f".{path.name}.new").write_bytes(content[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)

store_files.write_bytes = die
Run.create(Path(sys.argv[1]), from_mapping(json.loads(sys.argv[2]))).play()
"""


@pytest.mark.kill
def test_killed_while_spilling_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.VARIABLE, "60000")
    killed = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(killed), json.dumps(SCAFFOLD)], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert list((killed / "checkpoint" / "memories").glob(".*.new")), "half a file is left"
    assert list((killed / "checkpoint").glob("0000*")), "there is a checkpoint to go on from"
    DurableRun.resume(killed).play()
    DurableRun.create(tmp_path / "whole", from_mapping(SCAFFOLD)).play()
    assert content(killed) == content(tmp_path / "whole")


def test_the_budget_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.VARIABLE, "1.5GiB")
    assert machine.budget() == 3 * 2**29 and ClientStore().budget == 3 * 2**29
    monkeypatch.delenv(machine.VARIABLE)
    assert machine.budget() > 2**20
    with pytest.raises(UserError, match="SHOAL_MEMORY is 'much'.*512MiB"):
        machine.amount("much")
