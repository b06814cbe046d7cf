"""The two verbs that reach clients from the server outside training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from shoal.engines.api import Engine
from shoal.federation import Federation, Settings, part_view
from shoal.orders import make_order
from shoal.tree import Tree
from shoal.types import Job, Model
from shoal.view import ServerView
from shoal.wire import Spent
from shoal.worlds.base import Moment


def server_view(
    federation: Federation,
    settings: Settings,
    moment: Moment,
    k: int,
    i: int,
    engine: Engine,
    cohort: Sequence[int] = (),
    spent: Spent | None = None,
) -> ServerView:
    """The view of part ``i`` on model ``k``, able to reach clients; what that costs is added to
    ``spent``."""
    verbs = Reach(federation, settings, moment, engine, k, i, spent)
    return part_view(federation, settings, moment, k, i, cohort, verbs)


@dataclass(frozen=True)
class Reach:
    """The two verbs that reach clients, bound to one part and one model."""

    federation: Federation
    settings: Settings
    moment: Moment
    engine: Engine
    model: int
    part: int
    spent: Spent | None = None  # None: not of the method's own doing, as in an evaluation

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        jobs = [Job(client, self.model) for client in members]
        order = make_order(self.federation, self.settings, self.moment, self.model, jobs)
        answers = self.engine.ask(order, question, payload)
        if self.spent is not None:
            models = self.federation.models
            self.spent.asked(self.settings, order, question, payload, models, answers)
        return answers

    def rehearse(self, start: Tensor | Model, rounds: int, rate: float) -> Tensor:
        from shoal.round import play_round  # a rehearsal is rounds within a round

        epochs = len(self.settings.rates(self.moment))
        settings = replace(
            self.settings, rates=lambda moment: (rate,) * epochs, participation=1.0, cohorts=None
        )
        if isinstance(start, Model):
            model = start
        else:
            model = Model(start, self.federation.models[self.model].stats)
        moment = replace(self.moment, session=0, stage=0, shift=None)
        trial = Federation.fresh(settings, model, moment, rate)
        for index in range(rounds):
            # negative round numbers: probes of the same members see the same batches
            report = play_round(trial, settings, replace(moment, draw=-1 - index), self.engine)
            if self.spent is not None:
                self.spent.rehearsed(report)
        return trial.models[0].theta

    def remembered(self, members: Sequence[int]) -> list[int]:
        return self.federation.store.known(members, self.model)
