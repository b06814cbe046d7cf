"""``shoal.run(...)``, ``shoal.resume(...)``: runs from Python, in memory or in a directory."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.config.build import RunPlan, build
from shoal.config.own_names import own_names
from shoal.config.schema import Config, from_mapping
from shoal.config.subject import calendar_of
from shoal.core.errors import UserError, concerning
from shoal.core.files import dump_json, dump_yaml, write_bytes, write_text
from shoal.core.own_code import is_importing, is_in_a_file, named
from shoal.core.world_protocol import World
from shoal.data.dataset import Dataset
from shoal.data.given import as_config, dataset_of
from shoal.methods import catalog
from shoal.methods.catalog.registry import METHODS
from shoal.methods.method import Method
from shoal.reports.loggers import check
from shoal.reports.notebook import RunView
from shoal.reports.page_data import make_page
from shoal.reports.playing import Callback
from shoal.reports.playing import play as play_durable
from shoal.reports.progress import Progress
from shoal.rounds.play import ClientReport
from shoal.runs.directory import RunDir
from shoal.runs.journal import names_of, packed, unpacked, write_clients
from shoal.runs.player import Player, Record
from shoal.runs.records import read_rounds
from shoal.runs.run import DurableRun
from shoal.runs.stopping import reached
from shoal.runs.summary import summary


@dataclass(frozen=True)
class Result(RunView):
    """A finished run: its records, what they come to, and the global model by parameter name.

    A notebook shows it by itself; ``plot_accuracy()``, ``plot_timeline()``, ``plot(name)`` draw
    it, ``frame()`` is a data frame of its rounds.
    """

    plan: RunPlan
    rounds: list[Record]
    summary: dict[str, Any]
    model: dict[str, Tensor]
    clients: list[tuple[int, list[ClientReport]]]

    @cached_property
    def page(self) -> dict[str, Any]:
        """What plots and pages draw."""
        config = dump_yaml(self.plan.config.complete())
        return make_page("this run", config, self.plan.world.saved(), self.rounds, True)

    @property
    def notes(self) -> list[str]:
        """What a user should know of how the run was computed: fallbacks, refusals, slow paths."""
        return [note for record in self.rounds for note in record.get("notes", ())]

    @property
    def records(self) -> list[Record]:
        return self.rounds

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """The run directory that ``shoal run`` would have made, but for its checkpoint."""
        from safetensors.torch import save

        _check_readable(self.plan.config)
        where = RunDir(Path(directory))
        held = where.create(self.plan.config.complete(), self.plan.world.saved(), force)
        write_text(where.rounds, "".join(dump_json(record) + "\n" for record in self.rounds))
        rows = where.path / ".clients.rows"
        rows.write_bytes(b"".join(packed(round, reports) for round, reports in self.clients))
        write_clients(rows, where.clients, names_of(self.plan.world))
        rows.unlink()
        write_bytes(where.model, save({n: t.cpu().contiguous() for n, t in self.model.items()}))
        write_text(where.summary, dump_json(self.summary, indent=2) + "\n")
        held.close()
        return where.path


def run(
    *,
    world: World | Mapping[str, Any] | str | None = None,
    method: Any = "fedavg",
    seed: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    log: Sequence[str] | str = (),
    progress: bool = False,
    callbacks: Sequence[Callback] | Callback = (),
    seconds: float = math.inf,
    **config: Any,
) -> Result:
    """Run a method in a world: in memory, or with ``out`` in a directory, as ``shoal run`` does.

    ``world`` and ``method`` are objects, or what a config says of them; every other key of a
    config (``data``, ``model``, ``loss``, ``local``, ``participation``, ``problem`` ...) is a
    keyword argument with the config's default. Where a config names code of the user's
    (``"mymodels:Net"``), the class or function itself may stand, too. ``data`` may also be rows: a
    data frame, arrays ``(x, y)``, a data set of torch or Hugging Face (:mod:`shoal.data.given`).

    Parameters
    ----------
    out: the run directory; it has checkpoints, can be killed, resumed, watched and compared.
    force: replace an earlier run there.
    log: loggers of the directory: csv, tensorboard, mlflow, wandb.
    progress: show on stderr where the run is.
    callbacks: a function, or several, told the record of every round.
    seconds: stop (and resume later) after the round in which so much time is over.

    >>> result = run(problem={"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2},
    ...              client_weights="equal", local={"epochs": 2, "lr": 0.1}, engine="loop")
    >>> [round(record["theta"][0], 6) for record in result.rounds]
    [0.735, 0.542875]
    """
    if is_importing():
        raise UserError("the module that is imported starts a run; write what starts it under "
                        "if __name__ == '__main__':")  # fmt: skip
    durable = out is not None
    watchers = [callbacks] if callable(callbacks) else list(callbacks)
    values: dict[str, Any] = {"seed": seed, **config}
    built_world, built_method = None, None
    rows: Dataset | None = None
    given = values.get("data")
    said = isinstance(given, Mapping) and ("name" in given or "path" in given)
    if not (isinstance(given, str | None) or said or callable(given)):
        with concerning("data"):
            rows = dataset_of(given, calendar_of(world) if isinstance(world, Mapping) else None)
        values["data"] = as_config(rows, given)
    if isinstance(world, str | Mapping):
        values["world"] = world if isinstance(world, str) else dict(world)
    elif world is not None:
        built_world = world
        values["world"] = getattr(world, "spec", {"name": type(world).__name__})
    if isinstance(method, Method):
        built_method = method
        values["method"] = spec_of(method)
    else:
        values["method"] = method
    values = _in_words(values, durable)
    checked = from_mapping(values)
    if out is None:
        if log:
            raise UserError("log: loggers follow a run in a directory; say which with out=")
        if seconds != math.inf:
            raise UserError("seconds: a run in memory cannot be resumed; say where with out=")
        return play(build(checked, built_method, built_world, rows), progress, watchers)
    if rows is not None:
        raise UserError(
            "data: rows that a program holds could not be read again on resume; put them into a "
            "file, give the function that loads them, or leave out out="
        )
    loggers = check([log] if isinstance(log, str) else log)
    _check_readable(checked)
    RunDir(Path(out)).check_free(force)
    plan = build(checked)
    if built_world is not None and dump_json(built_world.saved()) != dump_json(plan.world.saved()):
        raise UserError("world: a config cannot say this world, so a run of it could not be "
                        "resumed; give its spec, or leave out out=")  # fmt: skip
    made = DurableRun.create(Path(out), checked, force, planned=lambda _: plan)
    return _played(made, loggers, progress, watchers, seconds)


def resume(
    directory: str | Path,
    *,
    log: Sequence[str] | str = (),
    progress: bool = False,
    callbacks: Sequence[Callback] | Callback = (),
    seconds: float = math.inf,
    accept_code: bool = False,
    changes: Sequence[str] = (),
    more: int = 0,
) -> Result:
    """Go on with a run that was killed or interrupted or that stopped early, as ``shoal resume``
    does; or with a finished one for ``more`` rounds.

    ``changes`` (``key=value``) may name another engine or device, or where the data are now.
    """
    loggers = check([log] if isinstance(log, str) else log)
    found = DurableRun.resume(
        Path(directory), _say, changes=changes, accept_code=accept_code, more=more
    )
    watchers = [callbacks] if callable(callbacks) else list(callbacks)
    return _played(found, loggers, progress, watchers, seconds)


def _say(text: str) -> None:
    print(f"shoal: note: {text}", file=sys.stderr)


def _played(
    run: DurableRun,
    loggers: Sequence[str],
    progress: bool,
    callbacks: Sequence[Callback],
    seconds: float,
) -> Result:
    play_durable(run, loggers, say=_say, progress=progress, callbacks=callbacks, seconds=seconds)
    where = run.where
    records = list(read_rounds(where.rounds))
    reports = unpacked((where.checkpoint / "clients.rows").read_bytes())
    clients = [(record["round"], reports.get(record["round"], [])) for record in records]
    figures = json.loads(where.summary.read_text(encoding="utf-8"))
    return Result(run.plan, records, figures, run.player.tensors(), clients)


def _in_words(values: Mapping[str, Any], durable: bool) -> dict[str, Any]:
    """The values of a config in which a class or function has its name in place of itself."""

    def words(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {words(key, name): words(key, inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [words(key, item) for item in value]
        if not callable(value) or isinstance(value, Method):
            return value
        name = getattr(value, "__name__", "")
        if METHODS.get(name) is value:
            return name
        return named(key, value, by_name=durable)

    return {key: words(key, value) for key, value in values.items()}


def _check_readable(config: Config) -> None:
    """Refuse to write a config that nobody could read back."""
    for key, name in own_names(config):
        if not is_in_a_file(name):
            raise UserError(
                f"{key}: no config can say {name}, so the run cannot be saved; give the function "
                "that makes it, at the top of a module of its own"
            )


def spec_of(method: Method) -> str | list[Any]:
    """What a config would say of a method; its description where a config cannot say it."""
    said = list(method.spec or ())
    try:
        same = bool(said) and catalog.build(said) == method
    except UserError:
        same = False
    return said if same else repr(method)


def play(plan: RunPlan, progress: bool = False, callbacks: Sequence[Callback] = ()) -> Result:
    """Every round of a plan."""
    if plan.config.keep_best is not None:
        raise UserError("keep_best: models are kept in a run directory (shoal run), and this run "
                        "is in memory; leave it out")  # fmt: skip
    player = Player(plan)
    records: list[Record] = []
    clients: list[tuple[int, list[ClientReport]]] = []
    shown = Progress(player.rounds, 0, plan.world) if progress else None
    if shown is not None:
        player.notes.listen = lambda text: shown.say(f"note: {text}")
    with shown or nullcontext():
        try:
            while not player.done:
                record, reports = player.play()
                records.append(record)
                clients.append((record["round"], reports))
                if shown is not None:
                    shown.show(record, player.rounds)
                for callback in callbacks:
                    callback(record)
                if plan.config.until and reached(record, plan.config.until) is not None:
                    break
            return Result(plan, records, summary(plan, records), player.tensors(), clients)
        finally:
            player.close()
