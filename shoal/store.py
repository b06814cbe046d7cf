"""What clients keep between rounds, by client and model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal import tree
from shoal.store_budget import budget as default_budget
from shoal.store_files import Folder, Memories, Spilled, SpillFile

Key = tuple[int, int]  # client, model
Entry = Memories | Spilled
MOST = 64 * 2**20  # bytes of a file


class ClientStore:
    """Memories of the clients that were seen; a method without memories stores nothing.

    At most half of ``budget`` bytes stays in RAM (:mod:`shoal.store_budget`); then the memories
    that were written longest ago go to files in ``folder`` (a temporary one unless given) of an
    eighth of the budget, 64 MiB at most, until a quarter is left. Reading one back leaves it on
    disk, and a file with more dead than live bytes is written anew. What is read is what was put,
    bit for bit.

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

    def get(self, client: int, model: int) -> Memories | None:
        entry = self._kept.get((client, model))
        return entry.load() if isinstance(entry, Spilled) else entry

    def put(self, client: int, model: int, memories: Memories) -> None:
        if not tree.leaves(memories):
            return
        key = (client, model)
        self._leave(key)
        self._kept[key] = memories
        self._sizes[key] = tree.nbytes(memories)
        self.resident += self._sizes[key]
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
            if isinstance(entry, Spilled):
                self._kept[key] = entry.without(index)
                continue
            self._kept[key] = kept = (*entry[:index], None, *entry[index + 1 :])
            self.resident += tree.nbytes(kept) - self._sizes[key]
            self._sizes[key] = tree.nbytes(kept)

    def forget_model(self, model: int) -> None:
        """Drop every client's memories of a global model that is another one now."""
        for key in [key for key in self._kept if key[1] == model]:
            self._leave(key)
            del self._kept[key]

    def entries(self) -> Iterator[tuple[Key, Entry]]:
        """Memories by client and model, those on disk as where they are."""
        yield from sorted(self._kept.items(), key=lambda item: item[0])

    def items(self) -> Iterator[tuple[Key, Memories]]:
        """The same, read back one after another."""
        for key, entry in self.entries():
            yield key, entry.load() if isinstance(entry, Spilled) else entry

    def copy(self) -> ClientStore:
        """The same memories; later changes to one store leave the other as it was."""
        other = ClientStore(budget=self.budget)
        other._folder = self._folder
        other._kept, other._sizes = dict(self._kept), dict(self._sizes)
        other.resident = self.resident
        return other

    def settle(self, folder: Path) -> None:
        """Write files there from now on; what a killed run has left there is removed."""
        self._folder = Folder(folder)

    def nbytes(self) -> int:
        """Of all memories, in RAM or not."""
        spilled = (e.form.nbytes for e in self._kept.values() if isinstance(e, Spilled))
        return self.resident + sum(spilled)

    def __len__(self) -> int:
        return len(self._kept)

    # ---- to disk ----
    @property
    def _file_bytes(self) -> int:
        return min(self.budget // 8, MOST)

    def _leave(self, key: Key) -> None:
        """The memories of ``key`` are not in RAM any more."""
        self.resident -= self._sizes.pop(key, 0)

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
            if isinstance(entry, Spilled):
                live[entry.file] += entry.form.nbytes
        old = {file for file, alive in live.items() if 2 * alive < file.nbytes}
        batch: list[Key] = []
        planned = 0
        for key, entry in list(self._kept.items()):
            if not isinstance(entry, Spilled) or entry.file not in old:
                continue
            batch.append(key)
            planned += entry.form.nbytes
            if planned >= self._file_bytes:
                self._write(batch)
                batch, planned = [], 0
        # few bytes: the rest waits for company, unless it holds back many files
        if batch and len(old) > 1:
            self._write(batch)
