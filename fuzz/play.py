"""A case played on an engine, and everything that it leaves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fuzz.draw import Case
from shoal.config import from_mapping
from shoal.config.build import RunPlan, build
from shoal.config.schema import Config
from shoal.config.subject import dataset_of, task_of
from shoal.core.types import ClientData, Model
from shoal.engines.api import Order
from shoal.engines.stacked import plan as plans
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.plan import Path as Way
from shoal.engines.stacked.plan import StackPlan
from shoal.rounds.orders import check_rounds
from shoal.rounds.state import Federation
from shoal.runs.player import Player, RoundFailedError
from shoal.runs.run import DurableRun
from shoal.worlds.world import Composed

Numbers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a run left: tensors by what they are, the records of its rounds, and what it said."""

    tensors: Numbers
    records: tuple[Mapping[str, Any], ...]
    model: Numbers = field(default_factory=dict)  # as it is exported
    notes: tuple[str, ...] = ()
    paths: frozenset[Way] = frozenset()
    sentence: str = ""  # why it ended before its time


@dataclass(frozen=True, eq=False)
class Resized(Composed):
    """A world whose clients have other numbers of rows, which may weigh differently."""

    sizes: tuple[int, ...] | None = None
    weighted: bool = False

    @cached_property
    def pad(self) -> int:
        if self.sizes is None:
            return int(vars(Composed)["pad"].func(self))
        found = {
            len(self.train(member, stage.start))
            for stage in self.stages
            for member in range(self.members)
        }
        return max(found) if len(found) > 1 else 0

    def train(self, client: int, round: int) -> ClientData:
        return self._resized(super().train(client, round), client)

    def under(self, client: int, concept: int, round: int) -> ClientData:
        return self._resized(super().under(client, concept, round), client)

    def _resized(self, data: ClientData, client: int) -> ClientData:
        if self.sizes is not None:
            most = min(len(data), self.sizes[client % len(self.sizes)])
            data = ClientData(data.pool, data.rows[:most], data.labels[:most], float(most))
        if self.weighted:
            data = replace(data, weight=0.5 + (data.rows % 3).to(torch.get_default_dtype()))
        return data


def planned(case: Case) -> Callable[[Config], RunPlan]:
    """Builds a config's plan with what no config can say."""

    def make(config: Config) -> RunPlan:
        plan = build(config)
        settings = plan.settings
        world = settings.world
        if isinstance(world, Composed) and (case.rows is not None or case.weighted):
            kept = {f.name: getattr(world, f.name) for f in fields(Composed)}
            world = Resized(**kept, sizes=case.rows, weighted=case.weighted)
        program, initial = settings.program, plan.initial
        if case.double and config.problem is None:
            task: Any = replace(task_of(plan.config, dataset_of(plan.config)), dtype=torch.float64)
            for part in program.method.fillers("transform_task"):
                task = part.transform_task(task)
            program = replace(program, task=task)
            initial = task.initial(config.seed)
        settings = replace(settings, program=program, world=world, start=initial)
        check_rounds(settings)  # again, of this world
        return RunPlan(plan.config, settings, initial)

    return make


def plan_of(case: Case, **changes: Any) -> RunPlan:
    return planned(case)(from_mapping({**case.config, **changes}))


@contextmanager
def limits(case: Case) -> Iterator[None]:
    """The constants of the engine's plan are the case's."""
    with ExitStack() as stack:
        for name, value in case.limits:
            stack.enter_context(patch.object(plans, name, value))
        yield


@contextmanager
def forced(way: Way | None, seen: set[Way]) -> Iterator[None]:
    """Chunks take this path where their own would have been a special one; ``seen`` gets those
    that plans chose."""
    own = Stacked.plan

    def plan(self: Stacked, order: Order) -> StackPlan:
        found = own(self, order)
        seen.add(found.path)
        if way is None or found.path is Way.GENERAL:
            return found
        return found._replace(path=way)

    with patch.object(Stacked, "plan", plan):
        yield


def play(
    case: Case, engine: str, *, path: Way | None = None, nudge: float = 0.0, **changes: Any
) -> Outcome:
    """The case in memory. ``nudge`` moves the initial model by so much of itself."""
    plan = plan_of(case, engine=engine, **changes)
    if nudge:
        plan = _nudged(plan, nudge)
    seen: set[Way] = set()
    with limits(case), forced(path, seen):
        player = Player(plan)
        records: list[Mapping[str, Any]] = []
        sentence = ""
        try:
            while not player.done:
                records.append(player.play()[0])
        except RoundFailedError as error:
            sentence = str(error)
        finally:
            player.close()
    kept, model = everything(player.federation), player.tensors()
    notes, paths = tuple(player.notes), frozenset(seen)
    return Outcome(kept, _plain(records), model, notes, paths, sentence)


def play_resumed(case: Case, folder: Path, engine: str, after: int) -> Outcome:
    """The case in a directory: stopped after some rounds as a kill would, and resumed."""
    config = {**case.config, "engine": engine, "checkpoint": {"every": 1}}
    watched = _Stop(after)
    sentence, player = "", None
    with limits(case):
        run = DurableRun.create(folder, from_mapping(config), planned=planned(case))
        try:
            run.play(watched)
        except _StoppedError:
            run = DurableRun.resume(folder, planned=planned(case))
            try:
                run.play()
            except RoundFailedError as error:
                sentence = str(error)
        except RoundFailedError as error:
            sentence = str(error)
        player = run.player
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    kept, model = everything(player.federation), player.tensors()
    return Outcome(kept, _plain(lines), model, sentence=sentence)


class _StoppedError(Exception):
    """The simulated kill."""


@dataclass
class _Stop:
    """Raises once a round is written down, before its checkpoint is."""

    after: int
    seen: int = 0

    def __call__(self, record: Mapping[str, Any], rounds: int) -> None:
        self.seen += 1
        if self.seen > self.after:
            raise _StoppedError


def everything(federation: Federation) -> dict[str, Tensor]:
    """Every tensor that a checkpoint would hold, by what it is."""
    found: dict[str, Tensor] = {}

    def put(name: str, value: Any) -> None:
        kind = getattr(value, "_fields", None)
        for number, leaf in enumerate(value if isinstance(value, tuple) else (value,)):
            own = f"{name} {type(value).__name__}.{kind[number]}" if kind else f"{name} {number}"
            if isinstance(leaf, tuple):
                put(own, leaf)
            elif leaf is not None:
                found[own] = leaf.detach().clone()

    for k, model in enumerate(federation.models):
        found[f"model {k}"], found[f"statistics {k}"] = model.theta.clone(), model.stats.clone()
    for k, states in enumerate(federation.servers):
        for i, state in enumerate(states):
            put(f"server's state {k}.{i}", state)
    for (client, k), memory in federation.store.items():
        for i, own in enumerate(memory):
            put(
                f"memory of client {client} for model {k}, part {i},",
                own if own is not None else (),
            )
    return found


def _plain(records: Any) -> tuple[Mapping[str, Any], ...]:
    """Records without time, and without what was said."""
    return tuple(
        {k: v for k, v in record.items() if not k.startswith("seconds") and k != "notes"}
        for record in records
    )


def _nudged(plan: RunPlan, size: float) -> RunPlan:
    """The initial model, moved a little in a direction that is always the same."""
    theta = plan.initial.theta
    noise = torch.randn(theta.shape, generator=torch.Generator().manual_seed(1), dtype=theta.dtype)
    moved = Model(theta + size * noise * (theta.abs() + 1e-3), plan.initial.stats)
    return RunPlan(plan.config, replace(plan.settings, start=moved), moved)


def packed(outcome: Outcome) -> bytes:
    """An outcome on its way to another process."""
    out = io.BytesIO()
    kept = dict(outcome.tensors), outcome.records, dict(outcome.model), outcome.sentence
    torch.save(kept, out)
    return out.getvalue()


def unpacked(data: bytes) -> Outcome:
    tensors, records, model, sentence = torch.load(io.BytesIO(data), weights_only=False)
    return Outcome(tensors, records, model, sentence=sentence)


__all__ = [
    "Outcome",
    "Resized",
    "everything",
    "packed",
    "plan_of",
    "planned",
    "play",
    "play_resumed",
    "unpacked",
]
