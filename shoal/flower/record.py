"""What a federation leaves on disk: the same files as a simulation, and what members reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from shoal import checkpoint
from shoal.checkpoint import Saved
from shoal.federation import Federation
from shoal.flower.agreement import Agreement
from shoal.flower.rollback import Scores, mean_accuracy
from shoal.flower.rules import Rules
from shoal.journal import Journal
from shoal.player import reported
from shoal.round import RoundReport
from shoal.rundir import RunDir, dump_json, write_bytes, write_text
from shoal.task import Task
from shoal.worlds.base import Moment

if TYPE_CHECKING:
    from shoal.flower.server import Server


class Books:
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
            "rejected": server.ledger.refusals(),
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
        server.ledger.write()
        self.status(server, "running")
        shown = "" if accuracy is None else f"; the model before it scored {accuracy:.3f}"
        who = f"{len(report.accepted)} of {len(report.cohort)} uploads accepted"
        return f"round {moment.round}: {who}, {seconds:.1f} s{shown}"

    def status(self, server: Server, state: str) -> None:
        here = {str(m): server.ledger.name(m) for m in sorted(server.presence.here)}
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
            "members": server.ledger.report(),
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
