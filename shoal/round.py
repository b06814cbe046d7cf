"""One round, top to bottom: read this and you have read the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from shoal import tree
from shoal.accumulate import Accumulator
from shoal.cohort import choose_cohort
from shoal.engines.api import Engine
from shoal.federation import (
    Federation,
    Settings,
    filling,
    last_models,
    part_view,
    set_state,
)
from shoal.orders import make_order
from shoal.reach import server_view
from shoal.stretch import change_of_stretch
from shoal.tree import Tree
from shoal.types import Job, Model, Rejected
from shoal.view import ServerView
from shoal.wire import Spent, bytes_down, bytes_up
from shoal.worlds.base import Moment


class ClientReport(NamedTuple):
    """One client in a round: its accepted upload as measured, and how well it is served.

    A member that was only evaluated has no steps; one that was not evaluated has no accuracy.
    """

    model: int
    client: int
    steps: int
    samples: int
    epochs: int
    norm: float
    accuracy: float = float("nan")


@dataclass
class RoundReport:
    """What happened in a round."""

    cohort: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    rejected: list[Rejected] = field(default_factory=list)
    attempts: int = 1
    abandoned: bool = False
    steps: int = 0
    samples: int = 0
    epochs: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    probing: Spent = field(default_factory=Spent)  # beside the training, which is the above
    noticed: bool = False
    norms: tuple[float, ...] = ()
    clients: list[ClientReport] = field(default_factory=list)  # accepted uploads only
    figures: dict[str, Tensor] = field(default_factory=dict)  # "model_1.name" where several train

    def costs(self) -> dict[str, Any]:
        """What the round cost, training and probing together; and of that, the probing."""
        training = {
            "steps": self.steps,
            "samples": self.samples,
            "epochs": sum(self.epochs),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }
        probing = self.probing.figures()
        both = {name: value + probing.get(name, 0) for name, value in training.items()}
        return {**both, "probing": probing} if probing else both


def play_round(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    before: Moment | None = None,
) -> RoundReport:
    """Change of stretch, cohort, training, aggregation, server step.

    An attempt below quorum changes nothing but the report, where its costs stay; nor does a round
    whose attempts all failed.
    """
    report, begin = RoundReport(), federation.snapshot()
    changes = moment.shift is not None or federation.noticed
    change_of_stretch(federation, settings, moment, engine, before, report.probing)
    changed = federation.snapshot() if changes else begin
    for attempt in range(settings.guard.retries + 1):
        report.attempts = attempt + 1
        report.cohort = choose_cohort(settings, moment, attempt)
        report.probing.next_attempt()
        _regroup(federation, settings, moment, engine, report)
        _put_questions(federation, settings, moment, engine, report)
        if _train_and_step(federation, settings, moment, engine, report):
            report.abandoned = False
            return report
        report.abandoned = True
        changed.paid = federation.paid  # what was sent was sent; all else is as before the attempt
        federation.restore(changed)
    federation.restore(begin)
    return report


# ---- before training ----
def _regroup(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    report: RoundReport,
) -> None:
    """Lets the one part that keeps the bank add models or replace them."""
    part = settings.method.only("regroup")
    if part is None:
        return
    index = settings.method.index(part)
    view = server_view(
        federation, settings, moment, 0, index, engine, report.cohort, report.probing
    )
    models, state = part.regroup(view)
    federation.regrouped(settings, models, moment, view.rate)
    set_state(federation, 0, index, state)


def _put_questions(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    report: RoundReport,
) -> None:
    for k in range(len(federation.models)):
        for i, part in enumerate(settings.method.parts):
            if part.fills("ask"):
                view = server_view(
                    federation, settings, moment, k, i, engine, report.cohort, report.probing
                )
                set_state(federation, k, i, part.ask(view))


def _jobs(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    report: RoundReport,
) -> Sequence[Job]:
    router = settings.method.only("route")
    if router is None:
        return [Job(client) for client in report.cohort]
    index = settings.method.index(router)
    return router.route(
        server_view(federation, settings, moment, 0, index, engine, report.cohort, report.probing)
    )


# ---- training, aggregation, server step ----
def _train_and_step(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    report: RoundReport,
) -> bool:
    """Everything after the questions; False below quorum."""
    jobs = _jobs(federation, settings, moment, engine, report)
    staged: list[tuple[int, Accumulator, Tensor]] = []
    memories: list[tuple[int, int, tuple[Tree, ...]]] = []
    for k in range(len(federation.models)):
        mine = [job for job in jobs if job.model == k]
        if mine:
            total, sent = _train_model(
                federation, settings, moment, engine, k, mine, report, memories
            )
            staged.append((k, total, sent))
    accepted = {c for _, total, _ in staged for c in total.clients}
    if len(accepted) < settings.guard.needed(len({job.client for job in jobs})):
        return False
    for client, k, kept in memories:
        federation.store.put(client, k, kept)
    report.accepted = tuple(sorted(accepted))
    report.clients = [ClientReport(k, *row) for k, t, _ in staged for row in t.work()]
    for k, total, sent in staged:
        if total.clients:
            _server_step(federation, settings, moment, k, total, sent, report)
    return True


def _train_model(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    k: int,
    jobs: Sequence[Job],
    report: RoundReport,
    memories: list[tuple[int, int, tuple[Tree, ...]]],
) -> tuple[Accumulator, Tensor]:
    """Broadcast one model, train it, add up what comes back."""
    order = make_order(federation, settings, moment, k, jobs, summed=_summed(settings))
    model = order.model
    total = Accumulator(
        settings.method, model.theta.numel(), model.stats.numel(), federation.models[k].theta
    )
    expected, seen = {job.client for job in jobs}, set[int]()
    for results in engine.train(order):
        keep, norms, rejected = settings.guard.screen(results, expected, model.theta.numel(), seen)
        report.rejected += rejected
        total.add(results, keep, norms, settings.uniform)
        if tree.leaves(results.memories):
            # copies, not views: a view would keep the whole chunk alive for one client
            rows = tree.unstack(results.memories)
            memories += [(results.clients[row], k, rows[row]) for row in keep]
        report.bytes_up += bytes_up(settings, results)
    report.bytes_down += bytes_down(federation, settings, k, order, report.probing)
    report.steps += total.steps
    report.samples += total.samples
    report.epochs += tuple(total.epochs)
    report.norms += tuple(total.norms)
    return total, model.theta


def _summed(settings: Settings) -> bool:
    """Whether finite uploads are only ever added up."""
    alone = any(part.individual_uploads for part in settings.method.parts)
    return settings.guard.norm is None and not alone


def _server_step(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    k: int,
    total: Accumulator,
    sent: Tensor,
    report: RoundReport,
) -> None:
    """aggregate, server_rate, server_step, anchor, notice, report."""
    method, uploads = settings.method, total.uploads()

    def view(i: int) -> ServerView:
        base = part_view(federation, settings, moment, k, i, total.clients)
        return replace(base, uploads=replace(uploads, payload=total.payload(i)), sent=sent)

    aggregator = method.only("aggregate")
    delta = uploads.delta
    if aggregator is not None:
        delta = aggregator.aggregate(view(method.index(aggregator)))
        uploads = replace(uploads, delta=delta)
    factor: float | Tensor = 1.0
    for i, part in filling(settings, "server_rate"):
        factor = factor * part.server_rate(view(i))
    stepper = method.only("server_step")
    if stepper is None:
        # the server steps from the bank; with nothing in between this is the mean of the models
        plain = isinstance(factor, float) and factor == 1
        theta = federation.models[k].theta + (delta if plain else factor * delta)
    else:
        i = method.index(stepper)
        theta, state = stepper.server_step(view(i), delta, factor)
        set_state(federation, k, i, state)
    for i, part in filling(settings, "anchor"):
        theta, state = part.anchor(view(i), theta)
        set_state(federation, k, i, state)
    stats = total.stats / total.total if total.stats.numel() else federation.models[k].stats
    federation.models[k] = Model(theta, stats)
    for i, part in filling(settings, "notice"):
        found, state = part.notice(view(i))
        set_state(federation, k, i, state)
        report.noticed = report.noticed or found
    federation.noticed = federation.noticed or report.noticed
    banks = (method.only("init_bank"), method.only("regroup"))
    last = last_models(federation, settings, moment)
    for i, part in filling(settings, "report"):
        # a part that keeps the bank speaks of all models at once
        prefix = "" if len(federation.models) == 1 or part in banks else f"model_{k}."
        report.figures.update(
            {
                prefix + name: value
                for name, value in part.report(replace(view(i), last_models=last)).items()
            }
        )
