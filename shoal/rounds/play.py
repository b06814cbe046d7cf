"""One round from the top (``play_round``); how the server reaches clients outside training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import Job, Model, Rejected
from shoal.core.world_protocol import Moment
from shoal.engines.api import Engine
from shoal.methods.slots import Part
from shoal.methods.view import ServerView
from shoal.rounds.cohort import cohort_of
from shoal.rounds.elsewhere import each_client
from shoal.rounds.orders import Spent, bytes_up, make_order, sent_down
from shoal.rounds.state import Federation, Round, Settings
from shoal.rounds.uploads import UploadSums

# ---- reach ---------------------------------------------------------------------------------------
# How the server reaches clients outside training: questions, and rounds that are rehearsed.


def calls(round: Round, part: int, model: int = 0) -> ServerView:
    """The view of a part that can reach clients; what that costs is added to ``round.spent``."""
    return round.view(part, model, calls=ServerCalls(round, model))


@dataclass(frozen=True)
class ServerCalls:
    """The calls that reach clients, bound to one model."""

    round: Round
    model: int

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        round = self.round
        order = make_order(round, self.model, [Job(client, self.model) for client in members])
        answers = round.engine.ask(order, question, payload)
        if round.spent is not None:
            models = round.federation.models
            round.spent.asked(round.settings, order, question, payload, models, answers)
        return answers

    def rehearse(self, start: Tensor | Model, rounds: int, rate: float) -> Tensor:
        round = self.round
        epochs = len(round.lr_per_epoch)
        settings = replace(
            round.settings, rates=lambda moment: (rate,) * epochs, participation=1.0, cohorts=None
        )
        stats = round.federation.models[self.model].stats
        model = start if isinstance(start, Model) else Model(start, stats)
        moment = replace(round.moment, session=0, stage=0, shift=None)
        trial = Federation.fresh(settings, model, moment, rate)
        for index in range(rounds):
            # negative round numbers: probes of the same members see the same batches
            report = play_round(trial, settings, replace(moment, draw=-1 - index), round.engine)
            if round.spent is not None:
                round.spent.rehearsed(report)
        return trial.models[0].theta

    def remembered(self, members: Sequence[int]) -> list[int]:
        return self.round.federation.store.known(members, self.model)


class _Question(NamedTuple):
    """The last question that all members were asked."""

    question: Callable[..., Tree]
    payload: Tree
    answers: dict[int, Tree]


@dataclass(frozen=True)
class BatchedCalls:
    """The same for a part that asks one member after another, as long as the federation stays as
    it is: a question is put to all members at once, and the answers are kept.

    Answers depend on the member, the question and the payload alone, so they are the same.
    """

    each: ServerCalls
    members: tuple[int, ...]  # who will be asked
    _last: list[_Question] = field(default_factory=list, repr=False)

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        # other questions may cost more for members that are never asked than they save
        if not getattr(question, "weighs_rows", False) or not set(members) <= set(self.members):
            return self.each.ask(question, payload, members)
        last = self._last[0] if self._last else None
        if last is None or last.question != question or not _same(last.payload, payload):
            answers = self.each.ask(question, payload, self.members)
            last = _Question(question, payload, dict(zip(self.members, answers, strict=True)))
            self._last[:] = [last]
        return [last.answers[member] for member in members]

    def rehearse(self, start: Tensor | Model, rounds: int, rate: float) -> Tensor:
        return self.each.rehearse(start, rounds, rate)

    def remembered(self, members: Sequence[int]) -> list[int]:
        return self.each.remembered(members)


def _same(a: Tree, b: Tree) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in pairs)


# ---- stretch -------------------------------------------------------------------------------------
# A change of session or task: what ends, what the next one starts from, who looks at it.


def change_session(round: Round, before: Moment | None) -> None:
    """``session_end`` in the old world, then ``start_model`` and ``session_begins`` in the new one,
    for the parts that listen to this kind of change."""
    federation, shift = round.federation, round.moment.shift
    kinds = set(shift.kinds) if shift and shift.announced else set()
    if federation.noticed:
        kinds.add("noticed")
    federation.noticed = False
    if not kinds or before is None:
        return
    listening = [(i, p) for i, p in enumerate(round.settings.method.parts) if kinds & set(p.on)]
    number = 1 + max((n for n, _ in federation.endings.values()), default=0)  # of this change
    for k in range(len(federation.models)):
        for i, part in listening:
            if part.fills("session_end"):
                state, payload = part.session_end(calls(round.at(before), i, k))
                round.update(i, k, state)
                federation.endings[k, i] = (number, payload)
        for i, part in listening:
            if part.fills("start_model"):
                model, state = part.start_model(calls(round, i, k))
                round.update(i, k, state)
                if model is not None:
                    federation.models[k] = model
                    round.reset(k)
        for i, part in listening:
            if part.fills("session_begins"):
                round.update(i, k, part.session_begins(calls(round, i, k)))


# ---- round ---------------------------------------------------------------------------------------
# One round, top to bottom: read this and you have read the algorithm.


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
    """Change of session, cohort, training, aggregation, server step.

    All of it happens on copies of the federation, and the copy of the attempt that reached quorum
    takes its place. So a failed attempt changes nothing but the report, where its costs stay, and
    what clients were sent.
    """
    report = RoundReport()
    round = Round(federation, settings, moment, engine, spent=report.probing)
    if moment.shift is not None or federation.noticed:
        round = round.attempt(())  # a copy for the change of session, which all attempts begin with
        change_session(round, before)
    for attempt in range(settings.guard.retries + 1):
        report.attempts = attempt + 1
        report.probing.next_attempt()
        trial = round.attempt(cohort_of(round, attempt))
        report.cohort = trial.cohort
        _update_models(trial)
        _before_training(trial)
        if _train_and_step(trial, report):
            federation.become(trial.federation)
            return report
        round.federation.paid = trial.federation.paid  # what was sent was sent
    report.abandoned = True
    federation.paid = round.federation.paid
    return report


# ---- before training ----
def _update_models(round: Round) -> None:
    """Lets the one part that fills the slot add models or replace them."""
    for i, part in round.filling("update_models"):
        models, state = part.update_models(calls(round, i))
        round.use_models(models)
        round.update(i, 0, state)


def _before_training(round: Round) -> None:
    for k in range(len(round.federation.models)):
        for i, part in round.filling("before_training"):
            round.update(i, k, part.before_training(calls(round, i, k)))


def _jobs(round: Round) -> Sequence[Job]:
    """Who trains which model."""
    assigning = round.only("assign_models")
    if assigning is None:
        return [Job(client) for client in round.cohort]
    i, part = assigning
    return part.assign_models(calls(round, i))


# ---- training, aggregation, server step ----
class Trained(NamedTuple):
    """What came back for one model: the sums, what each client keeps, and the vector sent."""

    model: int
    total: UploadSums
    memories: list[tuple[int, tuple[Tree, ...]]]  # by client
    sent: Tensor


def _train_and_step(round: Round, report: RoundReport) -> bool:
    """Everything after the questions; False below quorum."""
    jobs = _jobs(round)
    found: list[Trained] = []
    for k in range(len(round.federation.models)):
        mine = [job for job in jobs if job.model == k]
        if mine:
            found.append(_train_model(round, k, mine, report))
    accepted = {client for trained in found for client in trained.total.clients}
    if len(accepted) < round.settings.guard.needed(len({job.client for job in jobs})):
        return False
    for trained in found:
        for client, kept in trained.memories:
            round.federation.store.put(client, trained.model, kept)
    report.accepted = tuple(sorted(accepted))
    report.clients = [r for t in found for r in map(ClientReport, repeat(t.model), *t.total.work())]
    for trained in found:
        if trained.total.clients:
            _server_step(round, trained, report)
    return True


def _train_model(round: Round, k: int, jobs: Sequence[Job], report: RoundReport) -> Trained:
    """Broadcast one model, train it, add up what comes back."""
    federation, settings = round.federation, round.settings
    order = make_order(round, k, jobs, summed=_summed(settings))
    model, memories = order.model, list[tuple[int, tuple[Tree, ...]]]()
    total = UploadSums(
        settings.method, model.theta.numel(), model.stats.numel(), federation.models[k].theta
    )
    expected, seen = {job.client for job in jobs}, set[int]()
    for results in round.engine.train(order):
        keep, norms, rejected = settings.guard.screen(results, expected, model.theta.numel(), seen)
        report.rejected += rejected
        total.add(results, keep, norms, settings.uniform)
        if tree.leaves(results.memories):
            rows = each_client(results.memories)
            memories += [(results.clients[row], rows[row]) for row in keep]
        report.bytes_up += bytes_up(settings, results)
    down = sent_down(round, k, order, report.probing)
    report.bytes_down += down.bytes
    federation.paid.update(dict.fromkeys(down.paid, order.stage))
    report.steps += total.steps
    report.samples += total.samples
    report.epochs += tuple(total.epochs)
    report.norms += tuple(total.norms)
    return Trained(k, total, memories, model.theta)


def _summed(settings: Settings) -> bool:
    """Whether finite uploads are only ever added up."""
    alone = any(part.individual_uploads for part in settings.method.parts)
    return settings.guard.max_norm is None and not alone


def _server_step(round: Round, trained: Trained, report: RoundReport) -> None:
    """From the sums to the new model: ``aggregate``, ``server_stats``, ``server_rate``,
    ``server_step``, ``after_server_step``, ``detect``, ``report``."""
    k, total, _, sent = trained
    federation = round.federation
    stats = total.stats / total.total if total.stats.numel() else federation.models[k].stats
    uploads = total.uploads(stats)

    def view(i: int) -> ServerView:
        own = replace(uploads, payload=total.payload(i))
        return round.view(i, k, total.clients, uploads=own, sent=sent)

    delta: Tensor = round.run(
        "aggregate", lambda i, part, _: part.aggregate(view(i)), uploads.delta
    )
    if delta is not uploads.delta:
        uploads = replace(uploads, delta=delta)
    stats = round.run("server_stats", lambda i, part, _: part.server_stats(view(i)), stats)
    factor: float | Tensor = round.run(
        "server_rate", lambda i, part, _: part.server_rate(view(i)), 1.0
    )
    stepper = round.only("server_step")
    if stepper is None:
        # from the server's own model: ``broadcast`` may have sent another; where it did not, this
        # is the mean of the local models
        plain, old = isinstance(factor, float) and factor == 1, federation.models[k].theta
        if plain and not round.settings.method.parts and not delta.is_inference():
            theta = delta.add_(old)  # nobody has seen the mean, whose memory is as good as new
        else:
            theta = old + (delta if plain else factor * delta)
    else:
        i, part = stepper
        theta, state = part.server_step(view(i), delta, factor)
        round.update(i, k, state)

    def after_server_step(i: int, part: Part, theta: Tensor) -> Tensor:
        theta, state = part.after_server_step(view(i), theta)
        round.update(i, k, state)
        return theta

    theta = round.run("after_server_step", after_server_step, theta)
    federation.models[k] = Model(theta, stats)

    def detected(i: int, part: Part, _: bool) -> bool:
        found, state = part.detect(view(i))
        round.update(i, k, state)
        return found

    report.noticed = round.run("detect", detected, report.noticed)
    federation.noticed = federation.noticed or report.noticed
    _collect_figures(round, k, view, report)


def _collect_figures(
    round: Round, k: int, view: Callable[[int], ServerView], report: RoundReport
) -> None:
    """What parts report of a model, after the server step."""
    reporting = round.filling("report")
    if not reporting:
        return
    method, several = round.settings.method, len(round.federation.models) > 1
    of_all = (method.only("initial_models"), method.only("update_models"))
    last = round.last_models()
    for i, part in reporting:
        # a part that makes the models speaks of all of them at once
        prefix = f"model_{k}." if several and part not in of_all else ""
        found = part.report(replace(view(i), last_models=last))
        report.figures.update({prefix + name: value for name, value in found.items()})
