"""Memories that an engine keeps elsewhere: the store reads, counts and saves them all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from shoal.core import tree
from shoal.rounds.client_memories import ClientStore, Folder, Memories, OnDisk
from shoal.rounds.elsewhere import Away, AwayRows, each_client


class Shelf:
    """A block that lies in a list."""

    def __init__(self, count: int, first: float = 0.0) -> None:
        self.count, self.reads = count, 0
        self.rows = [((torch.full((3,), first + i),), (), torch.ones(2)) for i in range(count)]

    def read(self, row: int) -> Memories:
        self.reads += 1
        return tuple(tree.clone(self.rows[row]))

    def on_disk(self, folder: Folder) -> Sequence[OnDisk]:
        return folder.write(self.rows)

    def away(self) -> list[Memories]:
        """What results of these clients bring."""
        return each_client(
            (AwayRows(self, 0, self.count, 0, 12), (), AwayRows(self, 0, self.count, 2, 8))
        )


def filled(block: Shelf) -> ClientStore:
    store = ClientStore(budget=10**6)
    for client, memories in enumerate(block.away()):
        store.put(client, 0, memories)
    return store


def test_what_is_elsewhere_is_read_and_counted_as_if_it_were_here() -> None:
    block = Shelf(4)
    store, plain = filled(block), ClientStore()
    for client, memories in enumerate(block.rows):
        plain.put(client, 0, memories)
    assert store.resident == 0 and store.nbytes() == plain.nbytes() == 80 and block.reads == 0
    lent = store.lend(2, 0)
    assert lent is not None and isinstance(lent[0], Away) and lent[1] == () and block.reads == 0
    for (key, own), (other, same) in zip(store.items(), plain.items(), strict=True):
        assert key == other
        assert all(map(torch.equal, tree.leaves(own), tree.leaves(same)))


def test_a_part_is_forgotten_elsewhere_too(tmp_path: Path) -> None:
    store = filled(Shelf(3))
    store.use_folder(tmp_path / "memories")
    store.forget_part(0)
    found = store.get(1, 0)
    assert found is not None and found[0] is None and found[1] == ()
    assert torch.equal(found[2], torch.ones(2)) and store.nbytes() == 3 * 8
    saved = dict(store.entries())[1, 0]
    assert isinstance(saved, OnDisk) and saved.load()[0] is None
    store.forget_part(2)
    assert store.nbytes() == 0 and store.get(1, 0) == (None, (), None)


def test_a_checkpoint_finds_them_on_disk(tmp_path: Path) -> None:
    store = filled(Shelf(3, first=5.0))
    store.use_folder(tmp_path / "memories")
    found = [entry for _, entry in store.entries()]
    assert all(isinstance(entry, OnDisk) for entry in found)
    assert [float(entry.load()[0][0][0]) for entry in found if isinstance(entry, OnDisk)] == [
        5,
        6,
        7,
    ]


def test_blocks_that_are_mostly_dead_are_let_go() -> None:
    blocks = [Shelf(10), Shelf(9, first=100.0), Shelf(8, first=200.0)]
    store = ClientStore(budget=10**6)
    for begin, block in enumerate(blocks):  # of clients 0 to 9, 0 to 8, 0 to 7
        for client, memories in enumerate(block.away()):
            store.put(client, 0, memories)
        assert store.copy().resident == (40 if begin == 2 else 0)  # clients 8 and 9
    copy = store.copy()
    found = [float(copy.get(client, 0)[0][0][0]) for client in (0, 7, 8, 9)]  # type: ignore[index]
    assert found == [200.0, 207.0, 108.0, 9.0]
    assert isinstance(copy.lend(0, 0)[0], Away)  # type: ignore[index]
    assert store.resident == 0 and isinstance(store.lend(9, 0)[0], Away)  # type: ignore[index]


@pytest.mark.parametrize("keeps", [True, False])
def test_only_an_engine_that_reads_them_gets_what_stands_for_them(keeps: bool) -> None:
    from support import SmallWorld, settings_for, small_task

    from shoal import catalog
    from shoal.core.types import Job
    from shoal.engines.loop import Loop
    from shoal.rounds.orders import members_of
    from shoal.rounds.state import Federation, Round

    class Far(Loop):
        keeps_memories = keeps

    world = SmallWorld()
    settings = settings_for(catalog.scaffold(), world, small_task(world=world))
    moment = world.at(0)
    initial = settings.task.initial(0)
    federation = Federation.fresh(settings, initial, moment, 0.1)
    block = Shelf(1)
    federation.store.put(0, 0, (Away(block, 0, 0, 12),))
    (member,) = members_of(Round(federation, settings, moment, Far()), [Job(0)])
    assert member.memories is not None
    assert isinstance(member.memories[0], Away) == keeps and block.reads == 1 - keeps
