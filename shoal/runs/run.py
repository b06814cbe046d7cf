"""A run in a directory: it can be killed at any instruction and resumed to the same bits."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save

from shoal.config import Config, from_mapping, load_run, read
from shoal.config.build import RunPlan, build
from shoal.config.own_names import import_own
from shoal.config.read import applied
from shoal.config.version_0_1 import as_hashed_before
from shoal.core import files
from shoal.core.errors import LostMachinesError, UserError
from shoal.core.files import disk_is_full, dump_json, dump_yaml, write_bytes, write_text
from shoal.core.old_names import spelled_as_0_1
from shoal.core.types import ClientData
from shoal.metrics.evaluate import ROWS, evaluate
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs import directory as diverged
from shoal.runs.directory import RunDir
from shoal.runs.journal import Journal, names_of
from shoal.runs.longer import check_same_past, lengthened
from shoal.runs.origin import (
    Origin,
    check_code,
    check_origin,
    code_changed,
    origin_of,
    read_origin,
)
from shoal.runs.player import Player, Record, RoundFailedError
from shoal.runs.records import read_rounds
from shoal.runs.stopping import BestModel, reached
from shoal.runs.summary import summary
from shoal.worlds.members.ids import spread

AUTO_SECONDS = 20.0  # between two checkpoints, when the config leaves it to us
# Keys that say where and how a run is computed, not what: a run may be resumed with others.
ELSEWHERE = (
    "format", "engine", "engine_reason", "threads", "ray", "workers", "address", "device",
    "until", "keep_best",
)  # fmt: skip
# Keys that say where files are; what is in them has a digest in origin.json or world.json.
PATHS = (
    ("data", "path"),
    ("model", "init"),
    ("world", "file"),
    ("world", "members"),
    ("world", "available", "path"),
)
Planner = Callable[[Config], RunPlan]
Watcher = Callable[[Record, int], None]  # the record of a round, and the number of rounds
Say = Callable[[str], None]


class DurableRun:
    """A player whose rounds go to a directory.

    ``rounds.jsonl`` and the clients' rows are appended to in every round; a checkpoint holds the
    state and the lengths of both, and resuming cuts them back to it. The directory is locked until
    :meth:`close`.
    """

    def __init__(
        self,
        where: RunDir,
        player: Player,
        held: IO[str],
        config_hash: str,
        saved: checkpoint.Saved | None = None,
    ) -> None:
        self.where, self.player, self.plan = where, player, player.plan
        self._lock, self._hash = held, config_hash
        lengths = saved.lengths if saved else (0, 0)
        self.journal = Journal(where, lengths, names_of(self.plan.world))
        if saved is None:
            player.federation.store.use_folder(where.checkpoint / checkpoint.MEMORIES)
        rounds, metric = player.federation.round, player.plan.config.keep_best
        self.best = None if metric is None else BestModel.kept(metric, where.best, rounds)
        # what a checkpoint would hold: replaced as a whole once a round is written down
        self._good = (self.player.federation, self.journal.lengths)
        self._saved_round = saved.federation.round if saved else -1
        self._saved_at = time.monotonic()

    @classmethod
    def create(
        cls, directory: Path, config: Config, force: bool = False, planned: Planner = build
    ) -> DurableRun:
        """Check everything, then make the directory."""
        where = RunDir(directory)
        where.check_free(force)
        player = Player(planned(config))
        checkpoint.check(player.federation)
        plan = player.plan
        values = plan.config.complete()
        origin = replace(
            origin_of(plan), config=config_hash(values), engines={"0": _computed_by(plan.config)}
        )
        with _telling_full_disk(where):
            held = where.create(values, plan.world.saved(), force, origin.values())
            return cls(where, player, held, origin.config)

    @classmethod
    def resume(
        cls,
        directory: Path,
        say: Say = lambda text: None,
        planned: Planner = build,
        changes: Sequence[str] = (),
        accept_code: bool = False,
        more: int = 0,
    ) -> DurableRun:
        """The run in a directory, where its newest good checkpoint left it.

        ``changes`` (``key=value``) may say another engine or device, where the data are now, or
        when to stop; anything else would make it another run. Code of the user's must be the same,
        unless ``accept_code``. With ``more``, its world lasts so many rounds longer.
        """
        where = RunDir(directory)
        where.check_run()
        where.check_simulated()
        if where.finished and where.stopped is None and not more:
            raise UserError(f"{directory} is finished; there is nothing to resume")
        if (round := diverged.diverged(directory)) is not None:
            raise RoundFailedError(diverged.why(directory), round, True)
        if where.stopped is not None:  # it goes on, unless it is told when to stop again
            changes = ("until=null", *changes)
        with _telling_full_disk(where):
            where.checkpoint.mkdir(exist_ok=True)
            held = files.hold(where.lock, directory)
            try:
                if more:
                    plan = _lengthen(where, planned, more)
                    planned = planned if changes else lambda _: plan
                where.summary.unlink(missing_ok=True)
                return cls._resumed(where, held, say, planned, changes, accept_code)
            except BaseException:
                held.close()
                raise

    @classmethod
    def _resumed(
        cls,
        where: RunDir,
        held: IO[str],
        say: Say,
        planned: Planner,
        changes: Sequence[str],
        accept_code: bool,
    ) -> DurableRun:
        written, _ = read(where.config)
        _check_changes(written, changes)
        config = load_run(where.config, changes)
        old, now = read_origin(where.origin), config_hash(written)
        told = now if written.get("format") == 2 else hash_of_0_1(written)
        if old is None and written.get("format") == 2:
            raise UserError(
                f"{where.origin} is missing, so data and code cannot be compared with those of "
                "the run's start; put it back, or start a new run"
            )
        earlier = () if old is None else old.earlier
        if old is not None and old.config not in ("", now) and now not in earlier:
            raise checkpoint.another_config(where.path)
        known = {told, *earlier}
        if old is not None and old.config == now and old.config_0_1:
            known.add(old.config_0_1)
        check_code(where, old, config, accept_code)
        import_own(config)
        saved = checkpoint.load(where.checkpoint, known, config.device)
        if saved is not None and saved.skipped:
            say(saved.skipped)
        player = Player(planned(config), saved.federation if saved else None)
        player.notes.known(_noted(where, saved.lengths[0] if saved else 0))
        origin = _checked_origin(where, old, player, written, say, accept_code)
        values = player.plan.config.complete()
        if changes:
            if told != now:  # a directory of version 0.1 becomes one of this version
                origin = replace(origin, config=config_hash(values), config_0_1=told)
                told = origin.config
            origin.write(where.origin)
            write_text(where.config, dump_yaml(values))
        elif origin != old:
            origin.write(where.origin)
        return cls(where, player, held, told, saved)

    def play(self, watch: Watcher | None = None, seconds: float = math.inf) -> None:
        """Play what is left, at most for so long. Whatever stops it, the directory can be resumed.

        A run that has diverged is not played on: :class:`~shoal.runs.player.RoundFailedError` says
        so.
        """
        try:
            with _telling_full_disk(self.where):
                self._play(watch, time.monotonic() + seconds)
        finally:
            self.close()

    def _play(self, watch: Watcher | None, until: float) -> None:
        stopped: str | None = None
        try:
            while not self.player.done and stopped is None:
                record, clients = self.player.play()
                self.journal.append(record, clients)
                self._good = (self.player.federation, self.journal.lengths)
                if self.best is not None:
                    self.best.look(record, self.player.tensors())
                if watch is not None:
                    watch(record, self.player.rounds)
                self._check_loss(record)
                stopped = self._stopped(record, until)
                if self._due():
                    self._checkpoint()
            self._finish(None if self.player.done else stopped)
        except RoundFailedError as error:
            self._checkpoint()
            sentence = f"{error}; {self._advice(error)}"
            if error.diverged:
                diverged.note(self.where.path, error.round, sentence)
            raise RoundFailedError(sentence, error.round, error.diverged) from None
        except LostMachinesError as error:
            with suppress(
                LostMachinesError
            ):  # with the memories: then the checkpoint before counts
                self._checkpoint()
            raise UserError(
                f"{error}; go on, also on another cluster (--set ray.address=...) or on this "
                f"machine alone (--engine auto), with: shoal resume {self.where.path}"
            ) from None
        except KeyboardInterrupt:
            self._checkpoint()
            raise

    def _stopped(self, record: Record, until: float) -> str | None:
        """Why the run ends with this round, if it does."""
        config = self.plan.config
        if config.until and (said := reached(record, config.until)) is not None:
            return said
        return "the time is up" if time.monotonic() >= until else None

    def _check_loss(self, record: Record) -> None:
        """A loss that is not finite, or far above the initial one, ends the run; it is recorded."""
        most, loss = self.plan.config.guard.diverged, record["loss"]
        unscored = record["accuracy"] is None and self.plan.settings.task.classes is not None
        if loss is None or most is None or unscored or loss <= most:
            return
        first = max(1.0, initial_loss(self.plan))
        if math.isfinite(loss) and loss <= most * first:
            return
        said = f"{loss:.3g}, above guard.diverged ({most:g}) times the initial {first:.3g}"
        why = said if math.isfinite(loss) else "not finite"
        round = int(record["round"])
        raise RoundFailedError(f"round {round} ended with a loss that is {why}", round, True)

    def _advice(self, error: RoundFailedError) -> str:
        if error.diverged:
            return "it has diverged and would again: try a smaller local.lr, or local.clip"
        return f"the run stops here, try again with: shoal resume {self.where.path}"

    def _due(self) -> bool:
        every = self.plan.config.checkpoint.every
        if every == "auto":
            return time.monotonic() - self._saved_at > AUTO_SECONDS
        return self.player.federation.round % every == 0

    def _checkpoint(self) -> None:
        federation, lengths = self._good
        if federation.round != self._saved_round:
            if self.best is not None:
                self.best.write()
            self.journal.sync()
            checkpoint.save(self.where.checkpoint, federation, lengths, self._hash)
            self._saved_round = federation.round
        self.journal.refresh_table()
        self._saved_at = time.monotonic()

    def _finish(self, stopped: str | None) -> None:
        """The last files; ``summary.json`` comes last and says that the run is finished."""
        self._checkpoint()
        self.journal.write_table()
        write_model(self.player, self.where.model)
        found = summary(self.plan, read_rounds(self.where.rounds))
        if stopped is not None:
            found["stopped"] = stopped
        if self.best is not None and self.best.round >= 0:
            found["best"] = self.best.plain()
        write_text(self.where.summary, dump_json(found, indent=2) + "\n")

    def close(self) -> None:
        self.journal.close()
        self.player.close()
        self._lock.close()


def _noted(where: RunDir, length: int) -> list[str]:
    """The notes of the rounds that count: they are not said again."""
    if not length:
        return []
    lines = where.rounds.read_bytes()[:length].splitlines()
    return [note for line in lines for note in json.loads(line).get("notes", ())]


# ---- what makes a run the same run ---------------------------------------------------------------
def config_hash(values: Mapping[str, Any]) -> str:
    """Of a complete config, without what says where and how it is computed.

    The names of its keys are those of version 0.1, so that a key may be called otherwise later.
    """
    named = {k: v for k, v in as_hashed_before(values).items() if k not in ELSEWHERE}
    spelled = spelled_as_0_1(named)
    kept = json.loads(json.dumps(spelled))
    for *steps, last in PATHS:
        inner: Any = kept
        for step in steps:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get(last), str) and inner[last] != "random":
            inner[last] = "a path"
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _lengthen(where: RunDir, planned: Planner, more: int) -> RunPlan:
    """Write down that the world of a run lasts longer, and make the plan of it; what was played
    stays as it is. ``origin.json`` comes first: it knows both configs."""
    written, _ = read(where.config)
    old = read_origin(where.origin)
    if old is None or written.get("format") != 2:
        raise UserError(f"{where.path} was started by version 0.1, whose runs stay as long as they "
                        "are; start a new run")  # fmt: skip
    past: dict[str, Any] = json.loads(where.world.read_text(encoding="utf-8"))
    rounds = past["rounds"] if "rounds" in past else sum(s["rounds"] for s in past["segments"])
    plan = planned(from_mapping(lengthened(written, rounds, more)))
    check_same_past(plan.world, past, rounds)
    values, before = plan.config.complete(), config_hash(written)
    earlier = tuple(dict.fromkeys((*old.earlier, old.config, before)))
    replace(old, config=config_hash(values), earlier=earlier).write(where.origin)
    write_text(where.world, dump_json(plan.world.saved()) + "\n")
    write_text(where.config, dump_yaml(values))
    return plan


def hash_of_0_1(values: Mapping[str, Any]) -> str:
    """What version 0.1 wrote into checkpoints: of everything, in the order of the file."""
    return hashlib.sha256(dump_json(values).encode()).hexdigest()


def _check_changes(written: Mapping[str, Any], changes: Sequence[str]) -> None:
    for change in changes:
        if config_hash(applied(written, [change])) != config_hash(applied(written, [])):
            raise UserError(
                f"--set {change}: would make it another run; engine, threads, ray, device and the "
                "paths of files may change, so start a new run"
            )


def _checked_origin(
    where: RunDir,
    old: Origin | None,
    player: Player,
    written: Mapping[str, Any],
    say: Say,
    accept: bool,
) -> Origin:
    """Data and code must be the same; who computes may be another, which is noted."""
    origin, config = check_origin(where, old, player.plan, say, accept), player.plan.config
    if old is not None and (changed := code_changed(old, origin)):
        player.notes.add(f"from round {player.federation.round} on the code of "
                         f"{', '.join(changed)} is another (--accept-code)")  # fmt: skip
    first = f"{written.get('engine')} on {written.get('device')}"
    engines = dict(old.engines) if old is not None and old.engines else {"0": first}
    before, after = list(engines.values())[-1], _computed_by(config)
    if after != before:
        round = player.federation.round
        say(f"from round {round} on it is computed by engine {after}, before by {before}: the last "
            "bits may differ from a run on one engine")  # fmt: skip
        engines[str(round)] = after
    if old is None:
        return replace(origin, engines=engines)
    return replace(
        origin,
        config=old.config,
        config_0_1=old.config_0_1,
        engines=engines,
        earlier=old.earlier,
    )


def _computed_by(config: Config) -> str:
    return f"{config.engine} on {config.device}"


@contextmanager
def _telling_full_disk(where: RunDir) -> Iterator[None]:
    """A full disk is one sentence; what was written before is whole, and the run can go on."""
    try:
        yield
    except Exception as error:
        if not disk_is_full(error):
            raise
        reason = " ".join(str(error).split())
        again = f"go on with: shoal resume {where.path}" if where.is_run else "start it again"
        raise UserError(
            f"{where.path}: the disk is full ({reason}); free some space and {again}"
        ) from None


def initial_loss(plan: RunPlan) -> float:
    """The initial model's mean loss on test rows (1,024 evenly spaced ones of more); 0 where there
    are none, or it is not finite."""
    data = plan.world.tests(0).get("active")
    if data is None or not len(data):
        return 0.0
    kept = torch.tensor(list(spread(range(len(data)), ROWS)), device=data.rows.device)
    weight = None if data.weight is None else data.weight[kept]
    some = ClientData(data.pool, data.rows[kept], data.labels[kept], float(len(kept)), weight)
    loss = evaluate(plan.settings.task, plan.initial, some).loss
    return loss if math.isfinite(loss) else 0.0


def write_model(player: Player, path: Path, federation: Federation | None = None) -> None:
    """The global model(s) by parameter name, for ``load_state_dict`` of a plain module."""
    tensors = player.tensors(federation).items()
    write_bytes(path, save({name: t.cpu().contiguous() for name, t in tensors}))
