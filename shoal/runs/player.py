"""Plays a plan round by round, in memory: the state, and the record of every round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import Tensor

from shoal.config.build import RunPlan
from shoal.core import tree
from shoal.core.errors import UserError
from shoal.core.notes import notes_of
from shoal.core.world_protocol import Moment, World, called
from shoal.engines.api import Engine
from shoal.engines.client_round import ClientProgram
from shoal.engines.loop import Loop
from shoal.methods.method import Attributes
from shoal.rounds.evaluate import as_trained, local_scores, scored, train_accuracy
from shoal.rounds.orders import FROZEN, frozen_bytes, once_bytes
from shoal.rounds.play import ClientReport, RoundReport, play_round
from shoal.rounds.state import Federation, Round, Settings
from shoal.rounds.uploads import NOT_FINITE
from shoal.runs.cluster.connect import Cluster
from shoal.worlds.world import Composed

Record = dict[str, Any]
Observed = Callable[[Moment, RoundReport], Record]
SHORT = 64  # numbers of a part's figure that a record carries


class RoundFailedError(Exception):
    """A round stayed below quorum; its sentence is for the user.

    ``diverged`` if every upload that was turned away was not finite: the same run would end so
    again.
    """

    def __init__(self, sentence: str, round: int, diverged: bool) -> None:
        super().__init__(sentence, round, diverged)
        self.round, self.diverged = round, diverged

    def __str__(self) -> str:
        return str(self.args[0])


class Player:
    """A federation and where it stands. Between rounds it can be copied, saved and restored.

    The server of a real federation brings an ``engine`` of its own, and ``observed``: what members
    report of a round goes into its record, since nothing can be evaluated here.
    """

    def __init__(
        self,
        plan: RunPlan,
        federation: Federation | None = None,
        engine: Engine | None = None,
        observed: Observed | None = None,
    ) -> None:
        self.plan, self.settings, self.observed = plan, plan.settings, observed
        config = plan.config
        cluster = Cluster(**config.ray.model_dump(exclude={"gpus_per_worker"}))
        self.engine = engine or _engine(config.engine, config.threads, cluster)
        self.notes = notes_of(self.engine)
        # how long batches are padded is not known before members of a real federation are here
        self.notes.add(*(_notes_of_the_plan(plan) if observed is None else plan.notes))
        self._attributes = Attributes(plan.settings.method.parts)
        if federation is None:
            first = plan.world.at(0)
            rate = plan.settings.rates(first)[0]
            federation = Federation.fresh(plan.settings, plan.initial, first, rate)
            if self._attributes.foreign and observed is None:
                _rehearse(federation.snapshot(), plan.settings)
            self._attributes.check()
        self.federation = federation
        self._trained: ClientProgram | None = None

    @property
    def rounds(self) -> int:
        return self.plan.world.rounds

    @property
    def done(self) -> bool:
        return self.federation.round >= self.rounds

    def play(self) -> tuple[Record, list[ClientReport]]:
        """One round. If it fails or is interrupted, the federation is as before."""
        before = self.federation
        self.federation = before.snapshot()
        try:
            return self._play()
        except BaseException:
            self.federation = before
            raise

    def _play(self) -> tuple[Record, list[ClientReport]]:
        began, round = time.perf_counter(), self.federation.round
        world = self.plan.world
        moment = world.at(round)
        if not len(moment.members):
            raise UserError(f"world: no member is there in round {round}")
        before = world.at(round - 1) if round else None
        local = self._local(moment)
        report = play_round(self.federation, self.settings, moment, self.engine, before)
        self._attributes.check()
        if report.abandoned:
            infinite = [r.reason == NOT_FINITE for r in report.rejected]
            apart = bool(infinite) and all(infinite)
            raise RoundFailedError(_sentence(round, report, world), round, apart)
        record = self._record(moment, report) | local
        clients = _with_accuracy(report.clients, record.pop("by_member", {}))
        self.federation.round = round + 1
        if new := self.notes.news():
            record["notes"] = new
        record["seconds"] = round_to(time.perf_counter() - began)
        return record, clients

    def _record(self, moment: Moment, report: RoundReport) -> Record:
        shift, asked = moment.shift, self._asked(moment)
        record: Record = {
            "round": moment.round,
            "session": moment.session,
            "task": moment.stage,
            "shift": None
            if shift is None
            else {"kinds": sorted(shift.kinds), "announced": shift.announced},
            "noticed": report.noticed,
            "active": len(moment.members),
            "asked": asked,
            "short": len(moment.members) < asked,
            "cohort": list(report.cohort),
            "attempts": report.attempts,
            "accuracy": None,
            "loss": None,
            "tasks": {},
        }
        if self.observed is None and self._evaluates(moment.round):
            record |= self._scored(moment)
        record |= {
            **report.costs(),
            **self._named(moment, report),
        }
        if self.observed is not None:
            record |= {"source": "real", **self.observed(moment, report)}
        elif moment.round + 1 == self.rounds:
            record["stored"] = self._stored()
        if self.plan.config.problem is not None:
            record["theta"] = self.federation.models[0].theta.tolist()
        return record | dict(reported(report.figures, record))

    def _named(self, moment: Moment, report: RoundReport) -> Record:
        """Refusals; and the date and the cohort's names, in a world that knows them."""
        world = self.plan.world
        names: Sequence[str] | None = getattr(world, "names", None)
        date = world.when(moment.round) if isinstance(world, Composed) else None
        rejected = [
            {
                "client": r.client,
                **({} if names is None else {"name": names[r.client]}),
                "reason": r.reason,
            }
            for r in report.rejected
        ]
        return {
            "rejected": rejected,
            **({} if date is None else {"date": date}),
            **({} if names is None else {"cohort_names": [names[m] for m in report.cohort]}),
        }

    def _scored(self, moment: Moment) -> Record:
        """What evaluation finds, and the seconds it takes."""
        began, rules = time.perf_counter(), self.plan.config.evaluate
        found = scored(
            self.federation,
            self.settings,
            moment,
            rules.rows,
            self.engine,
            most=rules.members,
            metrics=rules.metrics,
            as_0_1=rules.held_out is None,
        )
        if found["accuracy"] is None and math.isnan(found["loss"]) and self.settings.task.classes:
            found["loss"] = None  # nobody has rows to be scored on; files have null for it
        if rules.train:
            found["train_accuracy"] = train_accuracy(
                self.federation, self.settings, moment, self.engine, most=rules.members
            )
        return {**found, "seconds_evaluating": round_to(time.perf_counter() - began)}

    def _local(self, moment: Moment) -> Record:
        """Every so many rounds, the scores of the local models that members would train."""
        every = self.plan.config.evaluate.local_models_every
        if every is None or moment.round % every or self.observed is not None:
            return {}
        if self._trained is None:
            self._trained = as_trained(self.settings.program)  # kept: its traces are reused
        found = local_scores(
            self.federation,
            self.settings,
            moment,
            self.engine,
            self._trained,
            most=self.plan.config.evaluate.members,
            as_0_1=self.plan.config.evaluate.held_out is None,
        )
        return {"local": found}

    def _stored(self) -> dict[str, int]:
        """Bytes that clients and the server's parts keep between rounds; what goes down once per
        stage (SPECIAL-C's last task's model) is kept by whoever it was sent to."""
        federation, once = self.federation, 0
        sent = [model for _, model in federation.paid if model != FROZEN]
        if sent:
            last = self.plan.world.at(max(0, federation.round - 1))
            once = once_bytes(Round(federation, self.settings, last))
        return {
            "clients": len({*federation.store.clients(), *federation.paid}),
            "client_bytes": federation.store.nbytes()
            + once * len(sent)
            + frozen_bytes(self.settings.task) * (len(federation.paid) - len(sent)),
            "server_bytes": sum(tree.nbytes(s) for s in self.federation.servers),
        }

    def _asked(self, moment: Moment) -> int:
        wanted = self.settings.participation
        return wanted if isinstance(wanted, int) else max(1, round(wanted * len(moment.members)))

    def _evaluates(self, round: int) -> bool:
        return (round + 1) % self.plan.config.evaluate.every == 0 or round + 1 == self.rounds

    def tensors(self, federation: Federation | None = None) -> dict[str, Tensor]:
        """The global model by parameter name; several models have a prefix each."""
        models = (federation or self.federation).models
        exported = [self.settings.task.export(model) for model in models]
        if len(exported) == 1:
            return exported[0]
        return {f"model_{k}.{n}": t for k, named in enumerate(exported) for n, t in named.items()}

    def close(self) -> None:
        self.engine.close()


def _engine(name: str, threads: int | None, cluster: Cluster | None) -> Engine:
    """An engine by its resolved name."""
    if name == "loop":
        return Loop()
    # Imported when it is wanted: tracing and Ray take time to load.
    if name == "ray":
        made: Engine = import_module("shoal.runs.cluster.ray").Ray(cluster)
        return made
    stacked: Engine = import_module("shoal.engines.stacked.engine").Stacked(threads=threads)
    return stacked


def _rehearse(federation: Federation, settings: Settings) -> None:
    """One step of the first round, so that a user's part shows what it does to itself.

    Whatever else goes wrong in it goes wrong in the round itself, where it can be seen.
    """
    with suppress(Exception):
        play_round(federation, replace(settings, steps=1), settings.world.at(0), Loop())


def reported(figures: dict[str, Tensor], record: Record) -> Iterator[tuple[str, Any]]:
    """Scalars and short vectors that parts report; a name that is taken gets a prefix."""
    for name, value in figures.items():
        if value.dim() <= 1 and value.numel() <= SHORT:
            yield (
                (f"part_{name}" if name in record or name.startswith("seconds") else name),
                value.tolist(),
            )


def _notes_of_the_plan(plan: RunPlan) -> list[str]:
    """What the config does not get as it says, or what a default means here."""
    settings, found = plan.settings, list(plan.notes)
    if settings.pad != settings.world.pad:
        found.append(
            "outputs of one row depend on the other rows of its batch, so short batches are not "
            "padded"
        )
    return found


def _sentence(round: int, report: RoundReport, world: World) -> str:
    reasons = {f"{called(world, r.client)}: {r.reason}" for r in report.rejected}
    shown = f" ({'; '.join(sorted(reasons)[:3])})" if reasons else ""
    return (
        f"round {round} was abandoned: too few uploads were accepted in "
        f"{report.attempts} attempts{shown}"
    )


def round_to(seconds: float) -> float:
    return float(f"{seconds:.6f}")


def _with_accuracy(
    trained: list[ClientReport], accuracy: dict[int, float | None]
) -> list[ClientReport]:
    """What clients did, and how well members are served; one row per client and model."""
    known = {int(c): a for c, a in accuracy.items() if a is not None}
    rows = [c._replace(accuracy=known.get(c.client, math.nan)) for c in trained]
    idle = sorted(set(known) - {c.client for c in trained})
    return rows + [ClientReport(0, c, 0, 0, 0, math.nan, known[c]) for c in idle]
