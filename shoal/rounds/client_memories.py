"""What clients keep between rounds, in RAM or on disk."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from shoal.core import tree
from shoal.core.files import write_bytes
from shoal.core.machine import budget as default_budget
from shoal.core.states import encode_tree
from shoal.core.tree import Tree
from shoal.rounds.elsewhere import Block, block_of, here, saved

# ---- store files ---------------------------------------------------------------------------------
# Files of clients' memories: written once, never changed, gone when nobody points at them.
#
# A file is written under another name, synced and renamed, so a file with the right name is whole.
# Nothing but this process points into it; a checkpoint takes a hard link of its own. What a killed
# run leaves behind is therefore never read: whoever comes next empties the folder first.

Memories = tuple[Tree, ...]
_SERIALS = count()  # no two files of a process share a name, so what is open is never mistaken


@dataclass(frozen=True, eq=False)
class StateShape:
    """What memories of one kind look like: a tree of places, and bytes and device of each place."""

    places: Memories  # numbers 0, 1, ... where tensors are
    sizes: tuple[int, ...]
    device: str

    def without(self, part: int) -> StateShape:
        """The same with one part's memory forgotten; the others keep their places."""
        return StateShape(
            (*self.places[:part], None, *self.places[part + 1 :]), self.sizes, self.device
        )

    @property
    def nbytes(self) -> int:
        return sum(self.sizes[place] for place in tree.leaves(self.places))


_FORMS: dict[tuple[str, tuple[int, ...], str], StateShape] = {}


def shape_of(memories: Memories) -> StateShape:
    """One object for all clients whose memories look the same."""
    found = tree.leaves(memories)
    device = str(found[0].device) if found else "cpu"
    sizes = tuple(t.numel() * t.element_size() for t in found)
    kind = str(encode_tree(memories, lambda _: "*", name=repr))  # equal tuples of two types are two
    key = (kind, sizes, device)
    if key not in _FORMS:
        _FORMS[key] = StateShape(tree.rebuild(memories, range(len(found))), sizes, device)
    return _FORMS[key]


class SpillFile:
    """One file; it is removed with the last reference to this object."""

    __slots__ = ("__weakref__", "nbytes", "path", "serial", "sha256")

    def __init__(self, path: Path, serial: int, content: bytes, nbytes: int) -> None:
        write_bytes(path, content)
        self.path, self.serial, self.nbytes = path, serial, nbytes  # bytes of tensors alone
        self.sha256 = hashlib.sha256(content).hexdigest()
        weakref.finalize(self, _remove, path)

    def tensor(self, number: int) -> Tensor:
        """A tensor of its own: nothing of the file stays mapped behind it."""
        found: Tensor = _opened(self.path).get_tensor(name_of(self.serial, number))
        return found.clone()


class OnDisk:
    """Where one client's memories are: tensors from number ``first`` on, as ``form`` says."""

    __slots__ = ("file", "first", "form")

    def __init__(self, file: SpillFile, first: int, form: StateShape) -> None:
        self.file, self.first, self.form = file, first, form

    def load(self) -> Memories:
        read = lambda place: self.file.tensor(self.first + place).to(self.form.device)  # noqa: E731
        return tuple(tree.apply(read, memory) for memory in self.form.places)

    def without(self, part: int) -> OnDisk:
        return OnDisk(self.file, self.first, self.form.without(part))

    def names(self) -> Iterator[str]:
        """What the tensors are called in the file, left to right."""
        for place in tree.leaves(self.form.places):
            yield name_of(self.file.serial, self.first + int(place))

    def outline(self) -> Memories:
        """The tree with an empty tensor in every place."""
        empty = torch.empty(0)
        return tuple(tree.apply(lambda _: empty, memory) for memory in self.form.places)


class Folder:
    """Where a store and its copies write files; made with the first of them."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)  # what a killed run has left

    def write(self, many: Iterable[Memories]) -> list[OnDisk]:
        """One file with the memories of several clients."""
        serial = next(_SERIALS)
        held: dict[str, Tensor] = {}
        firsts: list[tuple[int, StateShape]] = []
        for memories in many:
            firsts.append((len(held), shape_of(memories)))
            for leaf in tree.leaves(memories):
                held[name_of(serial, len(held))] = leaf.detach().cpu().contiguous().clone()
        path = self._made() / f"memories-{serial:08d}.safetensors"
        nbytes = sum(sum(form.sizes) for _, form in firsts)
        file = SpillFile(path, serial, save(held), nbytes)
        return [OnDisk(file, first, form) for first, form in firsts]

    def _made(self) -> Path:
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="shoal-memories-"))
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path


def name_of(serial: int, number: int) -> str:
    return f"m{serial:08d}.{number:07d}"


@lru_cache(maxsize=16)
def _opened(path: Path) -> Any:
    return safe_open(path, framework="pt")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


# ---- store ---------------------------------------------------------------------------------------
# What clients keep between rounds, by client and model.

Key = tuple[int, int]  # client, model
Entry = Memories | OnDisk
MOST = 64 * 2**20  # bytes of a file


class ClientStore:
    """Memories of the clients that were seen; a method without memories stores nothing.

    At most half of ``budget`` bytes stays in RAM (:mod:`shoal.core.machine`); then the memories
    that were written longest ago go to files in ``folder`` (a temporary one unless given) of an
    eighth of the budget, 64 MiB at most, until a quarter is left. Reading one back leaves it on
    disk, and a file with more dead than live bytes is written anew. What an engine keeps elsewhere
    (:class:`~shoal.rounds.elsewhere.Away`) counts for nothing of that. What is read is what was
    put, bit for bit.

    >>> store = ClientStore()
    >>> store.put(3, 0, ((),))
    >>> store.get(3, 0) is None, len(store)
    (True, 0)
    """

    def __init__(self, folder: Path | None = None, budget: int | None = None) -> None:
        self.budget = default_budget() if budget is None else budget
        self._folder = Folder(folder)
        self._kept: dict[Key, Entry] = {}
        self._sizes: dict[Key, int] = {}  # of those in RAM, the one put longest ago first
        self.resident = 0  # their sum
        self._away: dict[Block, int] = {}  # how many clients' memories are in it

    def get(self, client: int, model: int) -> Memories | None:
        found = self.lend(client, model)
        return None if found is None else here(found)

    def lend(self, client: int, model: int) -> Memories | None:
        """The same, for an engine that reads what is elsewhere itself."""
        entry = self._kept.get((client, model))
        return entry.load() if isinstance(entry, OnDisk) else entry

    def put(self, client: int, model: int, memories: Memories) -> None:
        if not tree.leaves(memories):
            return
        key = (client, model)
        self._leave(key)
        self._keep(key, memories)
        if self.resident > self.budget // 2:
            self._spill()

    def known(self, members: Sequence[int], model: int) -> list[int]:
        if len(self._kept) < len(members):
            wanted = set(members)
            return sorted(c for c, m in self._kept if m == model and c in wanted)
        return [c for c in members if (c, model) in self._kept]

    def clients(self) -> set[int]:
        """Who has memories here."""
        return {client for client, _ in self._kept}

    def forget_part(self, index: int) -> None:
        """Drop every client's memory of one part, so that it is made anew at next contact."""
        for key, entry in self._kept.items():
            if isinstance(entry, OnDisk):
                self._kept[key] = entry.without(index)
                continue
            kept = (*entry[:index], None, *entry[index + 1 :])
            if key not in self._sizes:  # elsewhere
                self._leave(key)
                self._keep(key, kept)
                continue
            self._kept[key] = kept
            self.resident += tree.nbytes(kept) - self._sizes[key]
            self._sizes[key] = tree.nbytes(kept)

    def forget_model(self, model: int) -> None:
        """Drop every client's memories of a global model that is another one now."""
        for key in [key for key in self._kept if key[1] == model]:
            self._leave(key)
            del self._kept[key]

    def entries(self) -> Iterator[tuple[Key, Entry]]:
        """Memories by client and model, those on disk as where they are; those that are elsewhere
        are then on disk, too."""
        for key, entry in sorted(self._kept.items(), key=lambda item: item[0]):
            yield key, entry if isinstance(entry, OnDisk) else saved(entry, self._folder)

    def items(self) -> Iterator[tuple[Key, Memories]]:
        """The same, read back one after another."""
        for key in sorted(self._kept):
            yield key, self.get(*key) or ()

    def copy(self) -> ClientStore:
        """The same memories; later changes to one store leave the other as it was."""
        other = object.__new__(ClientStore)  # without a look at the machine: every round has one
        vars(other).update(vars(self))
        other._kept, other._sizes = dict(self._kept), dict(self._sizes)
        other._away = dict(self._away)
        if other._away:
            other._fetch()
        return other

    def use_folder(self, folder: Path) -> None:
        """Write files there from now on; what a killed run has left there is removed."""
        self._folder = Folder(folder)

    def nbytes(self) -> int:
        """Of all memories, in RAM or not."""
        others = (entry for key, entry in self._kept.items() if key not in self._sizes)
        sizes = (e.form.nbytes if isinstance(e, OnDisk) else tree.nbytes(e) for e in others)
        return self.resident + sum(sizes)

    def __len__(self) -> int:
        return len(self._kept)

    # ---- to disk ----
    @property
    def _file_bytes(self) -> int:
        return min(self.budget // 8, MOST)

    def _keep(self, key: Key, memories: Memories) -> None:
        """In RAM, or elsewhere if they are there."""
        self._kept[key] = memories
        if (block := block_of(memories)) is not None:
            self._away[block] = self._away.get(block, 0) + 1
            return
        self._sizes[key] = tree.nbytes(memories)
        self.resident += self._sizes[key]

    def _leave(self, key: Key) -> None:
        """The memories of ``key`` are not in RAM any more, or not elsewhere."""
        self.resident -= self._sizes.pop(key, 0)
        entry = self._kept.get(key) if self._away else None
        block = block_of(entry) if isinstance(entry, tuple) else None
        if block is not None:
            self._away[block] -= 1
            if not self._away[block]:
                del self._away[block]

    def _fetch(self) -> None:
        """Where more of what is elsewhere is dead than alive, take over what is alive."""
        if sum(block.count for block in self._away) <= 2 * sum(self._away.values()):
            return
        old: dict[Block | None, list[Key]] = {
            block: [] for block, alive in self._away.items() if 2 * alive < block.count
        }
        for key, entry in self._kept.items():
            if isinstance(entry, tuple) and (block := block_of(entry)) in old:
                old[block].append(key)
        for key in [key for keys in old.values() for key in keys]:  # block by block
            self.put(*key, self.get(*key) or ())

    def _spill(self) -> None:
        while self._sizes and self.resident > self.budget // 4:
            batch: list[Key] = []
            planned = 0
            for key, size in self._sizes.items():
                batch.append(key)
                planned += size
                if planned >= self._file_bytes:
                    break
            self._write(batch)
        self._tidy()

    def _write(self, keys: Sequence[Key]) -> None:
        found = (self.get(*key) or () for key in keys)
        for key, entry in zip(keys, self._folder.write(found), strict=True):
            self._leave(key)
            self._kept[key] = entry

    def _tidy(self) -> None:
        """Write anew what is left of files that are mostly dead."""
        live: Counter[SpillFile] = Counter()
        for entry in self._kept.values():
            if isinstance(entry, OnDisk):
                live[entry.file] += entry.form.nbytes
        old = {file for file, alive in live.items() if 2 * alive < file.nbytes}
        batch: list[Key] = []
        planned = 0
        for key, entry in list(self._kept.items()):
            if not isinstance(entry, OnDisk) or entry.file not in old:
                continue
            batch.append(key)
            planned += entry.form.nbytes
            if planned >= self._file_bytes:
                self._write(batch)
                batch, planned = [], 0
        # few bytes: the rest waits for company, unless it holds back many files
        if batch and len(old) > 1:
            self._write(batch)
