"""Who is who: members by number, name and public key. The order of the file gives the numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError
from shoal.flower.keys import fingerprint
from shoal.rundir import dump_json, write_text


@dataclass(frozen=True)
class Entry:
    """One member. Its number is its place in the roster, and never changes."""

    member: int
    name: str
    public: bytes


class Roster:
    """The members that a federation knows; kept in a file, so that one who returns is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the file again: members are registered while the server runs."""
        if not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text())
            rows = [(str(e["name"]), str(e["key"]).encode()) for e in kept]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.path} is no roster (shoal flower register writes it)") from None
        self.entries = [Entry(i, name, key) for i, (name, key) in enumerate(rows)]

    def by_key(self, public: bytes) -> Entry | None:
        wanted = public.strip()
        return next((e for e in self.entries if e.public.strip() == wanted), None)

    def add(self, name: str, public: bytes) -> Entry:
        """A new member, or the one it is already; two may not share a name."""
        found = self.by_key(public)
        if found is not None:
            return found
        if any(e.name == name for e in self.entries):
            raise UserError(f"{self.path} has a member called {name!r} with another key "
                            f"({fingerprint(public)} is the new one)")  # fmt: skip
        entry = Entry(len(self.entries), name, public)
        self.entries.append(entry)
        rows = [{"name": e.name, "key": e.public.decode()} for e in self.entries]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, dump_json(rows, indent=2) + "\n")
        return entry
