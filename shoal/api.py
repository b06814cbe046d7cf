"""``shoal.run(...)``: a run from Python, without files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.config.build import RunPlan, build
from shoal.config.schema import from_mapping
from shoal.core.errors import UserError, concerning
from shoal.core.files import dump_json, dump_yaml, write_bytes, write_text
from shoal.core.world_protocol import World
from shoal.data.dataset import Dataset
from shoal.data.given import as_config, dataset_of
from shoal.methods import catalog
from shoal.methods.method import Method
from shoal.reports.notebook import Faces
from shoal.reports.page_data import make_page
from shoal.rounds.play import ClientReport
from shoal.runs.directory import RunDir
from shoal.runs.journal import packed, write_clients
from shoal.runs.player import Player, Record
from shoal.runs.summary import summary


@dataclass(frozen=True)
class Result(Faces):
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

        where = RunDir(Path(directory))
        held = where.create(self.plan.config.complete(), self.plan.world.saved(), force)
        write_text(where.rounds, "".join(dump_json(record) + "\n" for record in self.rounds))
        rows = where.path / ".clients.rows"
        rows.write_bytes(b"".join(packed(round, reports) for round, reports in self.clients))
        write_clients(rows, where.clients)
        rows.unlink()
        write_bytes(where.model, save({n: t.cpu().contiguous() for n, t in self.model.items()}))
        write_text(where.summary, dump_json(self.summary, indent=2) + "\n")
        held.close()
        return where.path


def run(
    *,
    world: World | Mapping[str, Any] | str | None = None,
    method: Method | str | Mapping[str, Any] | list[Any] = "fedavg",
    seed: int = 0,
    **config: Any,
) -> Result:
    """Run a method in a world, in memory.

    ``world`` and ``method`` are objects, or what a config says of them; every other key of a
    config (``data``, ``model``, ``local``, ``participation``, ``problem`` ...) is a keyword
    argument with the config's default. ``data`` may also be rows: a data frame, arrays ``(x, y)``,
    a data set of torch or Hugging Face (:mod:`shoal.data.given`).

    >>> result = run(problem={"a": [1, 2], "b": [2, -1], "n": [1, 3], "w0": [1], "rounds": 2},
    ...              client_weights="equal", local={"epochs": 2, "lr": 0.1}, engine="loop")
    >>> [round(record["theta"][0], 6) for record in result.rounds]
    [0.735, 0.542875]
    """
    values: dict[str, Any] = {"seed": seed, **config}
    built_world, built_method = None, None
    rows: Dataset | None = None
    given = values.get("data")
    if not isinstance(given, str | None) and not (
        isinstance(given, Mapping) and ("name" in given or "path" in given)
    ):
        with concerning("data"):
            rows = dataset_of(given)
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
        values["method"] = dict(method) if isinstance(method, Mapping) else method
    return play(build(from_mapping(values), built_method, built_world, rows))


def spec_of(method: Method) -> str | list[str]:
    """What a config would say of a method; its description where a config cannot say it."""
    names = method.name.split(" + ")
    try:
        same = catalog.build(names) == method
    except UserError:
        same = False
    return names if same else repr(method)


def play(plan: RunPlan) -> Result:
    """Every round of a plan."""
    player = Player(plan)
    records: list[Record] = []
    clients: list[tuple[int, list[ClientReport]]] = []
    try:
        while not player.done:
            record, reports = player.play()
            records.append(record)
            clients.append((record["round"], reports))
        return Result(plan, records, summary(plan, records), player.tensors(), clients)
    finally:
        player.close()
