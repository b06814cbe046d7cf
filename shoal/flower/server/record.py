"""What a federation leaves on disk: the files of a run, a log of events, and counts per member."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import shown
from shoal.core.files import dump_json, dump_yaml, private, write_text
from shoal.flower.agreement import Agreement
from shoal.flower.server.sessions import Scores, mean_score
from shoal.rounds.play import ClientReport
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs.checkpoint import Saved
from shoal.runs.directory import RunDir
from shoal.runs.journal import Journal
from shoal.runs.player import Record
from shoal.runs.records import read_rounds
from shoal.runs.run import write_model
from shoal.runs.summary import summary

if TYPE_CHECKING:
    from shoal.flower.server.server import Server


LOCK = "lock"  # held by the one server that uses a run


# ---- events ----
LONGEST_REASON = 300  # characters of a reason
Say = Callable[[str], None]


class EventLog:
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
        reason = shown(reason, LONGEST_REASON)
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


# ---- the files of a run ----
class RunRecord:
    """``rounds.jsonl``, ``clients.parquet``, checkpoints, ``status.json`` and the last files.

    ``config.yaml`` (the agreement's) and ``world.json`` are there for ``shoal report`` and
    ``watch``, who read a run directory of a simulation in the same way.
    """

    def __init__(
        self, folder: Path, agreement: Agreement, saved: Saved | None, names: Mapping[int, str]
    ) -> None:
        self.where, self.digest = RunDir(folder), agreement.digest
        agreement.write(folder / "federation.yaml")
        write_text(self.where.config, dump_yaml(agreement.shared))
        lengths = saved.lengths if saved else (0, 0)
        self.journal = Journal(self.where, lengths, names)

    def write(self, record: Record, clients: Sequence[ClientReport], server: Server) -> str:
        """A round: its record, its checkpoint, and a line for whoever watches."""
        self.journal.append(record, clients)
        self.journal.sync()
        self.journal.refresh_table()
        checkpoint.save(self.where.checkpoint, server.federation, self.journal.lengths, self.digest)
        server.log.write()
        self.status(server, "running")
        return round_line(record)

    def status(self, server: Server, state: str) -> None:
        values: dict[str, Any] = {
            "state": state,
            "rounds_done": server.federation.round,
            "rounds": server.rules.num_server_rounds,
            "members_here": {str(m): server.log.name(m) for m in sorted(server.online.here)},
            **_privacy(server),
        }
        write_text(self.where.path / "status.json", dump_json(values, indent=2) + "\n")

    def keep_model(self, server: Server, federation: Federation, name: str) -> None:
        folder = self.where.path / "models"
        folder.mkdir(exist_ok=True)
        write_model(server.player, folder / f"{name}.safetensors", federation)

    def finish(self, server: Server, scores: Scores) -> None:
        """``summary.json`` comes last and says that the run is finished."""
        self.journal.write_table()
        write_model(server.player, self.where.model)
        self.status(server, "finished")
        values = {
            **summary(server.player.plan, map(_completed, read_rounds(self.where.rounds)), "real"),
            "accuracy": mean_score(scores, server.online.judges),
            "accuracy_by_member": {str(m): pair[0] for m, pair in sorted(scores.items())},
            "members": server.log.report(),
            **_privacy(server),
        }
        write_text(self.where.summary, dump_json(values, indent=2) + "\n")

    def close(self) -> None:
        self.journal.close()


def round_line(record: Record) -> str:
    """A round for a person."""
    accuracy = record["received"]["accuracy"]
    scored = "" if accuracy is None else f", the model before it scored {accuracy:.3f}"
    uploads = f"{len(record['accepted'])} of {len(record['cohort'])} uploads accepted"
    return f"round {record['round']}: {uploads} in {record['seconds']:.1f} s{scored}"


def _privacy(server: Server) -> dict[str, Any]:
    return {} if server.account is None else {"privacy": server.account.plain()}


def _completed(record: Record) -> Record:
    """The record of a run that an earlier version began, which said less."""
    if "source" in record:
        return record
    empty = {"task": 0, "tasks": {}, "noticed": False, "short": False, "attempts": 1, "loss": None}
    return {**empty, "accuracy": record["received"]["accuracy"], **record}
