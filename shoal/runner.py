"""A run in a directory: it can be killed at any instruction and resumed to the same bits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save

from shoal import checkpoint
from shoal.config import Config, load
from shoal.config.build import Plan, build
from shoal.errors import UserError
from shoal.journal import Journal
from shoal.player import AbandonedError, Player, Record
from shoal.rundir import RunDir, dump_json, write_bytes, write_text
from shoal.summary import read_rounds, summary

AUTO_SECONDS = 20.0  # between two checkpoints, when the config leaves it to us
Planner = Callable[[Config], Plan]
Watcher = Callable[[Record, int], None]  # the record of a round, and the number of rounds


class Run:
    """A player whose rounds go to a directory.

    ``rounds.jsonl`` and the clients' rows are appended to in every round; a checkpoint holds the
    state and the lengths of both, and resuming cuts them back to it.
    """

    def __init__(
        self, where: RunDir, player: Player, saved: checkpoint.Saved | None = None
    ) -> None:
        self.where, self.player, self.plan = where, player, player.plan
        self.journal = Journal(where, saved.lengths if saved else (0, 0))
        if saved is None:
            player.federation.store.settle(where.checkpoint / checkpoint.MEMORIES)
        self._hash = config_hash(self.plan.config)
        # what a checkpoint would hold: replaced as a whole once a round is written down
        self._good = (self.player.federation, self.journal.lengths)
        self._saved_round = saved.federation.round if saved else -1
        self._saved_at = time.monotonic()

    @classmethod
    def create(
        cls, directory: Path, config: Config, force: bool = False, planned: Planner = build
    ) -> Run:
        """Check everything, then make the directory."""
        where = RunDir(directory)
        where.check_free(force)
        player = Player(planned(config))
        plan = player.plan
        where.create(plan.config.complete(), plan.world.saved(), force)
        return cls(where, player)

    @classmethod
    def resume(
        cls,
        directory: Path,
        say: Callable[[str], None] = lambda text: None,
        planned: Planner = build,
    ) -> Run:
        """The run in a directory, where its newest good checkpoint left it."""
        where = RunDir(directory)
        where.check_run()
        if where.finished:
            raise UserError(f"{directory} is finished; there is nothing to resume")
        config = load(where.config)
        saved = checkpoint.load(where.checkpoint, config_hash(config), config.device)
        if saved is not None and saved.skipped:
            say(saved.skipped)
        return cls(where, Player(planned(config), saved.federation if saved else None), saved)

    def play(self, watch: Watcher | None = None) -> None:
        """Play what is left. Whatever stops it, the directory can be resumed."""
        try:
            while not self.player.done:
                record, clients = self.player.play()
                self.journal.append(record, clients)
                self._good = (self.player.federation, self.journal.lengths)
                if watch is not None:
                    watch(record, self.player.rounds)
                if self._due():
                    self._checkpoint()
            self._finish()
        except AbandonedError as error:
            self._checkpoint()
            sentence = f"{error}; {self._advice(error)}"
            raise AbandonedError(sentence, error.round, error.diverged) from None
        except KeyboardInterrupt:
            self._checkpoint()
            raise
        finally:
            self.close()

    def _advice(self, error: AbandonedError) -> str:
        if error.diverged:
            return "it has diverged and would again: try a smaller local.rate, or local.clip"
        return f"the run stops here, try again with: shoal resume {self.where.path}"

    def _due(self) -> bool:
        every = self.plan.config.checkpoint.every
        if every == "auto":
            return time.monotonic() - self._saved_at > AUTO_SECONDS
        return self.player.federation.round % every == 0

    def _checkpoint(self) -> None:
        federation, lengths = self._good
        if federation.round != self._saved_round:
            self.journal.sync()
            checkpoint.save(self.where.checkpoint, federation, lengths, self._hash)
            self._saved_round = federation.round
        self.journal.refresh_table()
        self._saved_at = time.monotonic()

    def _finish(self) -> None:
        """The last files; ``summary.json`` comes last and says that the run is finished."""
        self._checkpoint()
        self.journal.write_table()
        write_model(self.player, self.where.model)
        records = read_rounds(self.where.rounds)
        write_text(self.where.summary, dump_json(summary(self.plan, records), indent=2) + "\n")

    def close(self) -> None:
        self.journal.close()
        self.player.close()


def config_hash(config: Config) -> str:
    return hashlib.sha256(dump_json(config.complete()).encode()).hexdigest()


def write_model(player: Player, path: Path) -> None:
    """The global model(s) by parameter name, for ``load_state_dict`` of a plain module."""
    write_bytes(path, save({name: t.cpu().contiguous() for name, t in player.tensors().items()}))


__all__ = ["Run", "config_hash", "write_model"]
