"""What happened, by name: a log of events, and counts for every member."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.durable import private
from shoal.errors import shown
from shoal.rundir import dump_json, write_text

LONGEST = 300  # characters of a reason
Say = Callable[[str], None]


class Ledger:
    """``events.jsonl``, and ``members.json`` with every member's asked, accepted and refused."""

    def __init__(self, folder: Path, say: Say = lambda text: None) -> None:
        self.folder, self.say = folder, say
        self.names: dict[int, str] = {}
        self.counts: dict[int, Counter[str]] = {}
        self.last: dict[int, str] = {}  # why a member's reply was refused last
        self.pending: list[dict[str, Any]] = []  # refusals that no round's record has yet
        self._read()

    def _read(self) -> None:
        """A resumed run goes on counting."""
        try:
            kept = json.loads((self.folder / "members.json").read_text())
        except (OSError, ValueError):
            return
        for member, entry in kept.items():
            self.names[int(member)] = entry["name"]
            self.counts[int(member)] = Counter(entry["counts"])
            if "last_refused" in entry:
                self.last[int(member)] = entry["last_refused"]

    def name(self, member: int) -> str:
        return self.names.get(member, f"member {member}")

    def event(self, kind: str, text: str, **more: Any) -> None:
        """One line for the log, one for the person who watches."""
        text = shown(text)
        line = {"time": round(time.time(), 3), "event": kind, "text": text, **more}
        log = self.folder / "events.jsonl"
        with open(log, "a", encoding="utf-8", opener=private) as file:
            file.write(dump_json(line) + "\n")
        self.say(text)

    def count(self, member: int, what: str) -> None:
        self.counts.setdefault(member, Counter())[what] += 1

    def refused(self, member: int, reason: str, round: int) -> None:
        reason = shown(reason, LONGEST)
        if member >= 0:  # a node that has not said who it is has no number
            self.count(member, "refused")
            self.last[member] = reason
            self.pending.append({"client": member, "reason": reason})
        text = f"round {round}: refused an upload of {self.name(member)}: {reason}"
        self.event("refused", text, member=member, name=self.name(member), reason=reason)

    def refusals(self) -> list[dict[str, Any]]:
        """Those since the last record of a round, attempts that failed included."""
        found, self.pending = self.pending, []
        return found

    def report(self) -> dict[str, Any]:
        """Every member's counts and the rate at which its uploads were refused."""
        found = {}
        for member, counts in sorted(self.counts.items()):
            came = counts["accepted"] + counts["refused"]
            rate = counts["refused"] / came if came else 0.0
            found[str(member)] = {
                "name": self.name(member),
                "refused_rate": round(rate, 4),
                "counts": dict(sorted(counts.items())),
                **({"last_refused": self.last[member]} if member in self.last else {}),
            }
        return found

    def write(self) -> None:
        write_text(self.folder / "members.json", dump_json(self.report(), indent=2) + "\n")
