"""One round, top to bottom: read this and you have read the algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from shoal import rng, tree
from shoal.accumulate import Accumulator
from shoal.engines.base import Engine, Member, Order
from shoal.federation import Federation, Settings, blank_view
from shoal.part import Part
from shoal.tree import Tree
from shoal.types import ClientData, Job, Model, Rejected
from shoal.view import ServerView, Uploads
from shoal.worlds.base import Drifting, Moment, World, gathered


class ClientReport(NamedTuple):
    """One accepted upload, as measured."""

    model: int
    client: int
    steps: int
    samples: int
    epochs: int
    norm: float


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
    noticed: bool = False
    norms: tuple[float, ...] = ()
    clients: list[ClientReport] = field(default_factory=list)  # accepted uploads only
    figures: dict[str, Tensor] = field(default_factory=dict)


def play_round(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    before: Moment | None = None,
) -> RoundReport:
    """Change of stretch, cohort, training, aggregation, server step. Below quorum: no change."""
    change_of_stretch(federation, settings, moment, engine, before)
    report = RoundReport()
    for attempt in range(settings.guard.retries + 1):
        report.attempts = attempt + 1
        report.cohort = choose_cohort(settings, moment, attempt)
        _regroup(federation, settings, moment, engine, report.cohort)
        _put_questions(federation, settings, moment, engine, report.cohort)
        if _train_and_step(federation, settings, moment, engine, report):
            report.abandoned = False
            return report
        report.abandoned = True
    return report


# ---- who takes part ----
def choose_cohort(settings: Settings, moment: Moment, attempt: int = 0) -> tuple[int, ...]:
    """The clients of a round, sorted; a retry draws others."""
    members, wanted = moment.members, settings.participation
    if settings.cohorts is not None:
        return settings.cohorts[moment.round]
    key = rng.keys(settings.seed, rng.Purpose.COHORT, moment.key, attempt)
    if settings.sampling == "bernoulli":
        share = wanted if isinstance(wanted, float) else wanted / max(1, len(members))
        drawn = np.flatnonzero(rng.uniform(key, len(members))[0] < share)
        picks = drawn if len(drawn) else rng.sample(key, len(members), 1)
    else:
        size = max(1, round(wanted * len(members))) if isinstance(wanted, float) else wanted
        if size >= len(members):
            return tuple(int(m) for m in members)
        picks = rng.sample(key, len(members), size)
    return tuple(int(members[int(i)]) for i in picks)


# ---- a change of stretch ----
def change_of_stretch(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    before: Moment | None,
) -> None:
    """``session_end`` in the old world, then ``session_start`` and ``begin`` in the new one."""
    kinds = set(moment.shift.kinds) if moment.shift and moment.shift.announced else set()
    if federation.noticed:
        kinds.add("noticed")
    federation.noticed = False
    if not kinds or before is None:
        return
    method = settings.method
    heard = [(i, p) for i, p in enumerate(method.parts) if kinds & set(p.on)]
    for k in range(len(federation.models)):
        for i, part in heard:
            if part.fills("session_end"):
                view = server_view(federation, settings, before, k, i, engine)
                state, payload = part.session_end(view)
                _set_state(federation, k, i, state)
                serial = federation.endings.get(i, (0, ()))[0] + 1
                federation.endings[i] = (serial, payload)
        for i, part in heard:
            if part.fills("session_start"):
                view = server_view(federation, settings, moment, k, i, engine)
                model, state = part.session_start(view)
                _set_state(federation, k, i, state)
                if model is not None:
                    federation.models[k] = model
                    _reset_states(federation, settings, moment, k)
        for i, part in heard:
            if part.fills("begin"):
                view = server_view(federation, settings, moment, k, i, engine)
                _set_state(federation, k, i, part.begin(view))


def _reset_states(federation: Federation, settings: Settings, moment: Moment, k: int) -> None:
    """What a constructed start resets, as each part says."""
    for i, part in enumerate(settings.method.parts):
        if part.resets in ("server", "both"):
            view = server_view(federation, settings, moment, k, i, None)
            _set_state(federation, k, i, part.server_state(view))
        if part.resets == "both":
            federation.store.forget_part(i)


# ---- before training ----
def _regroup(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    cohort: tuple[int, ...],
) -> None:
    """Lets the one part that keeps the bank add models or replace them."""
    part = settings.method.only("regroup")
    if part is None:
        return
    index = settings.method.index(part)
    view = server_view(federation, settings, moment, 0, index, engine, cohort)
    models, state = part.regroup(view)
    federation.regrouped(settings, models, moment, view.rate)
    _set_state(federation, 0, index, state)


def _put_questions(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    cohort: tuple[int, ...],
) -> None:
    for k in range(len(federation.models)):
        for i, part in enumerate(settings.method.parts):
            if part.fills("ask"):
                view = server_view(federation, settings, moment, k, i, engine, cohort)
                _set_state(federation, k, i, part.ask(view))


def _jobs(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    cohort: tuple[int, ...],
) -> Sequence[Job]:
    router = settings.method.only("route")
    if router is None:
        return [Job(client) for client in cohort]
    index = settings.method.index(router)
    return router.route(server_view(federation, settings, moment, 0, index, engine, cohort))


# ---- training, aggregation, server step ----
def _train_and_step(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    engine: Engine,
    report: RoundReport,
) -> bool:
    """Everything after the questions; False (and nothing changed) below quorum."""
    jobs = _jobs(federation, settings, moment, engine, report.cohort)
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
    order = make_order(federation, settings, moment, k, jobs)
    model = order.model
    total = Accumulator(
        settings.method, model.theta.numel(), model.stats.numel(), federation.models[k].theta
    )
    _, share = _travelling(settings)
    expected, seen = {job.client for job in jobs}, set[int]()
    for results in engine.train(order):
        keep, norms, rejected = settings.guard.screen(results, expected, model.theta.numel(), seen)
        report.rejected += rejected
        total.add(results, keep, norms, settings.uniform)
        if tree.leaves(results.memories):
            # copies, not views: a view would keep the whole chunk alive for one client
            rows = ((results.clients[row], tree.row(results.memories, row)) for row in keep)
            memories += [(client, k, tree.clone(own)) for client, own in rows]
        wire = round(share * tree.nbytes(results.delta))
        report.bytes_up += wire + tree.nbytes((results.stats, _counted(settings, results.payloads)))
    report.bytes_down += _bytes_down(federation, settings, order)
    report.steps += total.steps
    report.samples += total.samples
    report.epochs += tuple(total.epochs)
    report.norms += tuple(total.norms)
    return total, model.theta


def make_order(
    federation: Federation, settings: Settings, moment: Moment, k: int, jobs: Sequence[Job]
) -> Order:
    """What goes down, to whom."""
    cohort = tuple(job.client for job in jobs)
    theta, payloads = federation.models[k].theta, []
    for i, part in enumerate(settings.method.parts):
        payload: Tree = ()
        if part.fills("broadcast"):
            view = server_view(federation, settings, moment, k, i, None, cohort)
            theta, payload = part.broadcast(view, theta)
        payloads.append(payload)
    model = Model(theta, federation.models[k].stats)
    members = tuple(make_member(federation, settings, moment, job) for job in jobs)
    return Order(
        settings.program,
        model,
        federation.initial.theta,
        tuple(payloads),
        members,
        settings.rates(moment),
        settings.seed,
        moment.key,
        moment.session,
        moment.stage,
        settings.batch,
        settings.world.pad,
        settings.shuffle,
    )


def make_member(federation: Federation, settings: Settings, moment: Moment, job: Job) -> Member:
    """A client's data and memories for this round."""
    client, world, method = job.client, settings.world, settings.method
    memories = _caught_up(federation, settings, moment, job)
    train = _training_data(world, moment, job)
    if method.fills("data") and memories is not None:
        for i, part in enumerate(method.parts):
            if part.fills("data"):
                train = part.data(memories[i], train)
    steps = settings.steps
    cap = steps[client % len(steps)] if isinstance(steps, tuple) else steps
    validation = None
    if settings.program.needs_validation:
        validation = world.validation(client, moment.round)
    return Member(client, train, validation, memories, cap)


def _training_data(world: World, moment: Moment, job: Job) -> ClientData:
    """What the client holds now, or what its job says."""
    if job.concept is not None and isinstance(world, Drifting):
        return world.under(job.client, job.concept, moment.round)
    if job.blocks is not None:
        return gathered(world, job.client, job.blocks)
    return world.train(job.client, moment.round)


def _caught_up(
    federation: Federation, settings: Settings, moment: Moment, job: Job
) -> tuple[Tree, ...] | None:
    """The client's memories, after the client half of a ``session_end`` it has not seen yet."""
    memories = federation.store.get(job.client, job.model)
    if not federation.endings:
        return memories
    latest = max(serial for serial, _ in federation.endings.values())
    # a client that was never seen has no end to catch up with
    seen = federation.ended.get(job.client, 0) if memories is not None else latest
    for i, (serial, payload) in federation.endings.items():
        part = settings.method.parts[i]
        if memories is None or memories[i] is None:
            continue
        if serial > seen and part.fills("member_end"):
            model = federation.models[job.model]
            new = settings.program.ended_memory(
                i, model, federation.initial.theta, memories, payload
            )
            memories = (*memories[:i], new, *memories[i + 1 :])
            # kept at once: the upload that follows may be rejected, a question brings none
            federation.store.put(job.client, job.model, memories)
    federation.ended[job.client] = latest
    return memories


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
        base = server_view(federation, settings, moment, k, i, None, total.clients)
        return replace(base, uploads=replace(uploads, payload=total.payload(i)), sent=sent)

    aggregator = method.only("aggregate")
    delta = uploads.delta
    if aggregator is not None:
        delta = aggregator.aggregate(view(method.index(aggregator)))
        uploads = replace(uploads, delta=delta)
    factor: float | Tensor = 1.0
    for i, part in _filling(settings, "server_rate"):
        factor = factor * part.server_rate(view(i))
    stepper = method.only("server_step")
    if stepper is None:
        # the server steps from the bank; with nothing in between this is the mean of the models
        theta = federation.models[k].theta + factor * delta
    else:
        i = method.index(stepper)
        theta, state = stepper.server_step(view(i), delta, factor)
        _set_state(federation, k, i, state)
    for i, part in _filling(settings, "anchor"):
        theta, state = part.anchor(view(i), theta)
        _set_state(federation, k, i, state)
    stats = total.stats / total.total if total.stats.numel() else federation.models[k].stats
    federation.models[k] = Model(theta, stats)
    for i, part in _filling(settings, "notice"):
        found, state = part.notice(view(i))
        _set_state(federation, k, i, state)
        report.noticed = report.noticed or found
    federation.noticed = federation.noticed or report.noticed
    for i, part in _filling(settings, "report"):
        report.figures.update(part.report(view(i)))


# ---- small things ----
def _filling(settings: Settings, slot: str) -> list[tuple[int, Part]]:
    return [(i, p) for i, p in enumerate(settings.method.parts) if p.fills(slot)]


def _set_state(federation: Federation, k: int, i: int, state: Tree) -> None:
    states = federation.servers[k]
    federation.servers[k] = (*states[:i], state, *states[i + 1 :])


def _travelling(settings: Settings) -> tuple[float, float]:
    """The shares of the vector that go over the wire, down and up."""
    shares = [part.travels(settings.task.layout) for _, part in _filling(settings, "travels")]
    return math.prod(down for down, _ in shares), math.prod(up for _, up in shares)


def _counted(settings: Settings, payloads: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The payloads that cost bytes: not those a server can form from the delta itself."""
    if settings.method.fills("client_start"):
        return payloads  # the start is the client's secret, and so is its displacement
    pairs = zip(settings.method.parts, payloads, strict=True)
    return tuple(payload for part, payload in pairs if not part.derivable_upload)


def _bytes_down(federation: Federation, settings: Settings, order: Order) -> int:
    """Bytes of the model to everybody; a once-a-stage payload only to whoever lacks it."""
    wire = round(_travelling(settings)[0] * tree.nbytes(order.model.theta))
    total = len(order.members) * (wire + tree.nbytes(order.model.stats))
    new = [m.client for m in order.members if federation.paid.get(m.client) != order.stage]
    once = False
    for i, part in enumerate(settings.method.parts):
        size = tree.nbytes(order.sent[i])
        stage_only = part.payload_once == "stage" and size > 0
        once = once or stage_only
        total += size * (len(new) if stage_only else len(order.members))
    if once:
        federation.paid.update({client: order.stage for client in new})
    return total


def server_view(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    k: int,
    i: int,
    engine: Engine | None,
    cohort: Sequence[int] = (),
) -> ServerView:
    """The view of part ``i`` on model ``k``; with an engine, it can reach clients."""
    verbs = Reach(federation, settings, moment, engine, k, i) if engine is not None else None
    return blank_view(
        settings,
        federation.models[k],
        federation.initial.theta,
        moment,
        settings.rates(moment)[0],
        state=federation.servers[k][i] if k < len(federation.servers) else (),
        cohort=tuple(cohort),
        verbs=verbs,
        models=tuple(federation.models),
    )


@dataclass(frozen=True)
class Reach:
    """The two verbs that reach clients, bound to one part and one model."""

    federation: Federation
    settings: Settings
    moment: Moment
    engine: Engine
    model: int
    part: int

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        jobs = [Job(client, self.model) for client in members]
        order = make_order(self.federation, self.settings, self.moment, self.model, jobs)
        return self.engine.ask(order, question, payload)

    def rehearse(self, theta: Tensor, rounds: int, rate: float) -> Tensor:
        epochs = len(self.settings.rates(self.moment))
        settings = replace(
            self.settings, rates=lambda moment: (rate,) * epochs, participation=1.0, cohorts=None
        )
        model = Model(theta, self.federation.models[self.model].stats)
        moment = replace(self.moment, session=0, stage=0, shift=None)
        trial = Federation.fresh(settings, model, moment, rate)
        for index in range(rounds):
            # negative round numbers: probes of the same members see the same batches
            play_round(trial, settings, replace(moment, draw=-1 - index), self.engine)
        return trial.models[0].theta

    def remembered(self, members: Sequence[int]) -> list[int]:
        return self.federation.store.known(members, self.model)


__all__ = ["ClientReport", "Reach", "RoundReport", "Uploads", "choose_cohort", "play_round"]
