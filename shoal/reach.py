"""How the server reaches clients outside training: questions, and rounds that are rehearsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.context import Round
from shoal.federation import Federation
from shoal.orders import make_order
from shoal.tree import Tree
from shoal.types import Job, Model
from shoal.view import ServerView


def calls(round: Round, part: int, model: int = 0) -> ServerView:
    """The view of a part that can reach clients; what that costs is added to ``round.spent``."""
    return round.view(part, model, verbs=ServerCalls(round, model))


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
        from shoal.round import play_round  # a rehearsal is rounds within a round

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
