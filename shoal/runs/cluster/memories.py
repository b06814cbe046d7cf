"""Clients' memories on the nodes of a cluster: each on two of them, or on this machine's disk.

A worker leaves what its clients remember in its node's store, and another node takes a copy before
the share counts as done. So no round is committed whose memories a single lost node takes away.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor

from shoal.core import tree
from shoal.core.errors import LostMachinesError
from shoal.core.tree import Tree
from shoal.engines.api import Member, Results
from shoal.rounds.client_memories import Folder, Memories, OnDisk
from shoal.rounds.elsewhere import Away, AwayRows
from shoal.runs.cluster.travel import Array, array, arrived

AT_LEAST = 100_000  # bytes of a share's memories: Ray brings smaller answers to the driver anyway
AT_HAND = 4  # blocks that are read at once


class Copy(NamedTuple):
    """Where memories are."""

    node: str
    stored: Any  # an ObjectRef


class MemoryBlock:
    """What the clients of one share remember, one row per client."""

    def __init__(self, keeper: Keeper, count: int, copies: Sequence[Copy]) -> None:
        self.count, self.copies = count, tuple(copies)
        self._keeper, self._disk = keeper, tuple[OnDisk, ...]()

    @property
    def saved(self) -> bool:
        return bool(self._disk)

    def read(self, row: int) -> Memories:
        if self._disk:
            return self._disk[row].load()
        return tuple(tree.clone(row_of(self._keeper.fetched(self), row)))

    def on_disk(self, folder: Folder) -> Sequence[OnDisk]:
        if not self._disk:
            self._disk = tuple(folder.write(self.read(row) for row in range(self.count)))
        return self._disk


def row_of(kept: Tree, row: int) -> Tree:
    """One client's memories of a stack that has arrived."""

    def own(leaf: Any) -> Tensor:
        found: Tensor = arrived(leaf)[row]
        return found if found.data_ptr() % 64 == 0 else found.clone()

    return tree.apply(own, kept)


def kept_of(found: Sequence[Results]) -> tuple[Tree, tuple[int | None, ...]] | None:
    """What the clients of a share remember as one stack, and bytes of each part and client (None:
    no memory); None where somebody has to look at them, or where they are few."""
    stacks = [results.memories for results in found]
    if not tree.leaves(tuple(stacks)) or not all(results.counted for results in found):
        return None
    if tree.nbytes(tuple(stacks)) < AT_LEAST:
        return None
    whole, count = tree.join(stacks), sum(len(results.clients) for results in found)
    sizes = [tree.nbytes(own) // count if tree.leaves(own) else None for own in whole]
    return tree.apply(array, whole), tuple(sizes)


def standing_for(block: MemoryBlock, sizes: Sequence[int | None],
                 found: Iterable[Results]) -> Iterator[Results]:  # fmt: skip
    """Results with what stands for memories that are in the block."""
    first = 0
    for results in found:
        own = [() if size is None else AwayRows(block, first, len(results.clients), part, size)
               for part, size in enumerate(sizes)]  # fmt: skip
        first += len(results.clients)
        yield results._replace(memories=tuple(own))


@dataclass(frozen=True)
class Lying:
    """A memory on its way to a worker: in which block, in which row, of which part."""

    block: int
    row: int
    part: int


def lent(members: Sequence[Member]) -> tuple[Tree, tuple[tuple[Any, ...], ...]]:
    """Members' memories on their way to a worker, and where the blocks are that they lie in. What
    is on this machine travels."""
    blocks: dict[MemoryBlock, int] = {}

    def out(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return array(leaf)
        if not isinstance(leaf, Away):
            return leaf
        assert isinstance(leaf.block, MemoryBlock)
        if not leaf.block.copies:
            return tree.apply(array, leaf.read())
        return Lying(blocks.setdefault(leaf.block, len(blocks)), leaf.row, leaf.part)

    if all([m.memories is None for m in members]):
        return None, ()
    found = tree.apply(out, tuple([m.memories for m in members]))
    return found, tuple([tuple([copy.stored for copy in block.copies]) for block in blocks])


def at_home(members: Sequence[Member]) -> Counter[str]:
    """On which nodes are how many bytes of what these members remember."""
    found: Counter[str] = Counter()
    for member in members:
        for own in member.memories or ():
            if isinstance(own, Away) and isinstance(own.block, MemoryBlock):
                for copy in own.block.copies:
                    found[copy.node] += own.nbytes
    return found


class Keeper:
    """All blocks of an engine. ``get`` fetches; ``lost`` are errors that say it is gone; without a
    head that is ``reachable`` nobody is asked, since he might never answer."""

    def __init__(
        self,
        get: Callable[[Any], Tree],
        lost: tuple[type[Exception], ...],
        reachable: Callable[[], bool],
    ) -> None:
        self._get, self._lost, self._reachable = get, lost, reachable
        self._blocks: WeakSet[MemoryBlock] = WeakSet()
        self._fetched: OrderedDict[MemoryBlock, Tree] = OrderedDict()
        self._folder = Folder()

    def block(self, count: int, copies: Sequence[Copy]) -> MemoryBlock:
        made = MemoryBlock(self, count, copies)
        self._blocks.add(made)
        return made

    def fetched(self, block: MemoryBlock) -> Tree:
        if block not in self._fetched:
            if not self._reachable():
                raise LostMachinesError("ray: the cluster with clients' memories is gone")
            self._fetched[block] = fetched([c.stored for c in block.copies], self._get, self._lost)
        self._fetched.move_to_end(block)
        while len(self._fetched) > AT_HAND:
            self._fetched.popitem(last=False)
        return self._fetched[block]

    def forget(self) -> None:
        """Hold nothing that was fetched."""
        self._fetched.clear()

    def short_of(self, nodes: Iterable[str]) -> list[MemoryBlock]:
        """Those of which a copy was on a node that is not there any more, or leaves; only copies on
        ``nodes`` count from here on."""
        there, found = set(nodes), []
        for block in list(self._blocks):
            kept = tuple(copy for copy in block.copies if copy.node in there)
            if len(kept) == len(block.copies):
                continue
            if not kept and not block.saved:
                raise LostMachinesError(
                    f"ray: both nodes with the memories of {block.count} clients are gone"
                )
            block.copies = kept
            if len(kept) == 1 and not block.saved:
                found.append(block)
        return found

    def save(self, block: MemoryBlock) -> None:
        """Bring a block to this machine's disk."""
        block.on_disk(self._folder)
        self._fetched.pop(block, None)

    def bring_home(self) -> None:
        """All blocks to this machine's disk, as far as they can be reached: the cluster is left."""
        for block in list(self._blocks):
            try:
                self.save(block)
            except LostMachinesError:
                continue
            finally:
                block.copies = ()


def fetched(
    stored: Sequence[Any], get: Callable[[Any], Tree], lost: tuple[type[Exception], ...]
) -> Tree:
    """What is stored at one of several places."""
    for own in stored:
        try:
            return get(own)
        except lost:
            continue
    raise LostMachinesError("ray: the nodes with some clients' memories are gone")


class BlockReader:
    """A worker's side: memories of the blocks of one share."""

    def __init__(
        self,
        blocks: Sequence[Sequence[Any]],
        get: Callable[[Any], Tree],
        lost: tuple[type[Exception], ...],
    ) -> None:
        self._blocks, self._get, self._lost = blocks, get, lost
        self._rows: dict[int, Tree] = {}

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, Lying):
            return arrived(leaf) if isinstance(leaf, Array) else leaf
        if leaf.block not in self._rows:
            self._rows[leaf.block] = fetched(self._blocks[leaf.block], self._get, self._lost)
        return row_of(self._rows[leaf.block][leaf.part], leaf.row)
