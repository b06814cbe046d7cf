"""What a member keeps between rounds, on its own disk, under the ticket of the order that made it.

The server knows tickets only. It names the ticket of the last upload that it accepted, so a
member whose upload was refused, or a server that went back to a checkpoint, goes on from the
right memories.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.durable import private_folder
from shoal.flower import wire
from shoal.rundir import write_bytes
from shoal.tree import Tree

KEPT = 16  # tickets
LIMIT = 1 << 40  # the node's own disk is not bounded here


@dataclass(frozen=True)
class Kept:
    """Memories, one a part, and the serial of the last session's end they have seen."""

    memories: tuple[Tree, ...]
    ended: int


class MemoryDisk:
    """Memories by ticket; a write is complete or did not happen."""

    def __init__(self, folder: Path, words: wire.Vocabulary) -> None:
        private_folder(folder.parent)  # the member's home
        private_folder(folder)
        self.folder, self.words = folder, words

    def put(self, ticket: int, kept: Kept, using: int = -1) -> None:
        """Keep under ``ticket``; the ticket in use survives, however old it is."""
        blob = wire.encode("Kept", {"ended": kept.ended}, {"memories": kept.memories})
        write_bytes(self._file(ticket), blob)
        files = sorted(self.folder.glob("*.kept"), key=lambda f: f.stat().st_mtime_ns)
        for file in files[:-KEPT]:
            if file != self._file(using):
                file.unlink(missing_ok=True)

    def get(self, ticket: int) -> Kept | None:
        """The memories of a ticket; None if they are gone or cannot be read."""
        try:
            raw = wire.decode(self._file(ticket).read_bytes(), LIMIT, self.words)
        except (OSError, wire.WireError):
            return None
        return Kept(tuple(raw.trees["memories"]), int(raw.values["ended"]))

    def _file(self, ticket: int) -> Path:
        return self.folder / f"{ticket}.kept"
