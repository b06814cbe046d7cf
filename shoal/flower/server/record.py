"""What a federation leaves on disk: the files of a run, a log of events, and counts per member."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from shoal import checkpoint
from shoal.checkpoint import Saved
from shoal.durable import private
from shoal.errors import shown
from shoal.federation import Federation
from shoal.flower.agreement import Agreement, Rules
from shoal.flower.server.sessions import Scores, mean_accuracy
from shoal.journal import Journal
from shoal.player import reported
from shoal.round import RoundReport
from shoal.rundir import RunDir, dump_json, write_bytes, write_text
from shoal.task import Task
from shoal.worlds.base import Moment

if TYPE_CHECKING:
    from shoal.flower.server.server import Server


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
    """``rounds.jsonl``, ``clients.parquet``, checkpoints, ``status.json`` and the last files."""

    def __init__(
        self, folder: Path, agreement: Agreement, rules: Rules, saved: Saved | None
    ) -> None:
        self.folder, self.digest, self.rules = folder, agreement.digest, rules
        agreement.write(folder / "federation.yaml")
        self.journal = Journal(RunDir(folder), saved.lengths if saved else (0, 0))

    def write(self, moment: Moment, report: RoundReport, server: Server, seconds: float) -> str:
        """A round: its record, its checkpoint, and a line for whoever watches."""
        scores = dict(server.engine.scores)
        accuracy = mean_accuracy(scores, server._judges)
        record: dict[str, Any] = {
            "round": moment.round,
            "session": moment.session,
            "shift": None if moment.shift is None else {"kinds": ["members"], "announced": True},
            "active": len(moment.members),
            "cohort": list(report.cohort),
            "accepted": list(report.accepted),
            "received": {
                "accuracy": accuracy,
                "by_member": {str(m): pair[0] for m, pair in sorted(scores.items())},
            },
            **report.costs(),
            "rejected": server.log.refusals(),
            "seconds": round(seconds, 3),
        }
        if server.account is not None:
            record["epsilon"] = round(server.account.epsilon(), 4)
            record["epsilon_against_server"] = round(server.account.against_server(), 4)
        record |= reported(report.figures, record)
        self.journal.append(record, report.clients)
        self.journal.sync()
        lengths = self.journal.lengths
        checkpoint.save(self.folder / "checkpoint", server.federation, lengths, self.digest)
        server.log.write()
        self.status(server, "running")
        shown = "" if accuracy is None else f"; the model before it scored {accuracy:.3f}"
        who = f"{len(report.accepted)} of {len(report.cohort)} uploads accepted"
        return f"round {moment.round}: {who}, {seconds:.1f} s{shown}"

    def status(self, server: Server, state: str) -> None:
        here = {str(m): server.log.name(m) for m in sorted(server.online.here)}
        values: dict[str, Any] = {
            "state": state,
            "rounds_done": server.federation.round,
            "rounds": self.rules.num_server_rounds,
            "members_here": here,
        }
        if server.account is not None:
            values["privacy"] = server.account.plain()
        write_text(self.folder / "status.json", dump_json(values, indent=2) + "\n")

    def keep_model(self, task: Task, federation: Federation, name: str) -> None:
        folder = self.folder / "models"
        folder.mkdir(exist_ok=True)
        write_bytes(folder / f"{name}.safetensors", _model(task, federation))

    def finish(self, server: Server, scores: Scores) -> None:
        """``summary.json`` comes last and says that the run is finished."""
        self.journal.write_table()
        task = server.settings.task
        write_bytes(self.folder / "model.safetensors", _model(task, server.federation))
        self.status(server, "finished")
        values: dict[str, Any] = {
            "rounds": server.federation.round,
            "method": server.settings.method.name,
            "accuracy": mean_accuracy(scores, server._judges),
            "accuracy_by_member": {str(m): pair[0] for m, pair in sorted(scores.items())},
            "members": server.log.report(),
        }
        if server.account is not None:
            values["privacy"] = server.account.plain()
        write_text(self.folder / "summary.json", dump_json(values, indent=2) + "\n")

    def close(self) -> None:
        self.journal.close()


def _model(task: Task, federation: Federation) -> bytes:
    """The models by parameter name, for ``load_state_dict`` of a plain module."""
    named = [task.export(model) for model in federation.models]
    if len(named) == 1:
        tensors = named[0]
    else:
        tensors = {f"model_{k}.{n}": t for k, one in enumerate(named) for n, t in one.items()}
    return save({name: t.cpu().contiguous() for name, t in tensors.items()})
