"""Banks of global models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.task import mean_loss
from shoal.core.tree import Tree
from shoal.core.types import Job, Model
from shoal.methods.slots import Part, question, sends, weighs_rows
from shoal.methods.view import ServerView, View

# ---- select --------------------------------------------------------------------------------------
# Several global models, each client training the one that fits it best.

Measure = Literal["loss", "accuracy"]


def stacked(models: Sequence[Model]) -> Tree:
    """A bank as it is sent with a question: ``[K, P]`` and ``[K, S]``."""
    return Model(torch.stack([m.theta for m in models]), torch.stack([m.stats for m in models]))


def misfits(view: View, bank: Tree, measure: Measure) -> Tensor:
    """How badly each model of a stacked bank fits the client's data, ``[K]``: less is better.

    The mean loss, or the share of wrong answers (the loss where there are no classes).
    """
    assert view.train is not None, "questions see the training data"
    batch, out = view.train, []
    for theta, stats in zip(bank.theta, bank.stats, strict=True):
        outputs = replace(view, stats=stats).forward(theta, batch)
        if measure == "accuracy" and view.task.classes is not None:
            out.append(batch.mean((outputs.logits.argmax(-1) != batch.y).to(theta.dtype)))
        else:
            out.append(mean_loss(view.task, outputs, batch))
    return torch.stack(out)


def rounding(values: Tensor) -> Tensor:
    """What may be rounding in losses or shares: four units in the last place, of 1 at least."""
    return 4.0 * torch.finfo(values.dtype).eps * values.abs().clamp_min(1.0)


def lowest(values: Tensor) -> int:
    """The first index of the least value; values equal up to rounding tie, and NaN is no value.

    >>> lowest(torch.tensor([float("nan"), 2.0, 1.0 + 1e-7, 1.0]))
    2
    """
    values = values.nan_to_num(nan=float("inf"), posinf=float("inf"))
    least = values.min()
    return int((values <= least + rounding(least)).nonzero()[0])


@dataclass(frozen=True, kw_only=True)
class BestOfBank(Part):
    """``k`` global models; a client trains the one with the least mean training loss.

    Mansour et al., "Three Approaches for Personalization with Applications to Federated Learning"
    (HypCluster), 2020. Ties, up to rounding, go to the lowest index; each model takes the mean of
    its trainers, and one without trainers stays as it is. A client is served the model it would
    train.

    Parameters: ``k`` (2; not stated in the FLASH paper).

    Deviations: none; for nobody in particular the first model is served. The models differ in their
    random initialisation, the first being the run's own; equal ones would never separate and are
    refused.
    """

    k: int = 2

    def initial_models(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        here = view.theta.device
        others = [view.task.initial(seed + j).to(here) for j in range(1, self.k)]
        if any(torch.equal(view.theta, other.theta) for other in others):
            raise UserError(
                f"the {self.k} models would start alike and never separate; "
                "the task must give another start for another seed"
            )
        return (view.model, *others)

    def assign_models(self, view: ServerView) -> Sequence[Job]:
        answers = view.clients.ask(self.losses, stacked(view.models), view.cohort)
        pairs = zip(view.cohort, answers, strict=True)
        return [Job(client, lowest(losses)) for client, losses in pairs]

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if client is None:
            return view.models[0]
        (losses,) = view.clients.ask(self.losses, stacked(view.models), [client])
        return view.models[lowest(losses)]

    @question
    @weighs_rows
    @sends("models")
    def losses(self, view: View, payload: Tree) -> Tree:
        """The mean training loss of every model on the client's data."""
        return misfits(view, payload, "loss")


# ---- drift models --------------------------------------------------------------------------------
# A bank that grows when clients find that no model fits their new data.

NONE = -1
ROWS = 64  # of the first table; it doubles when it is full


@state("drift_models.assignments")
class Assignments(NamedTuple):
    """A row for every client that was ever selected; ``history`` is ``[rows, steps]``."""

    ids: Tensor  # the row's client
    history: Tensor  # the model that a step's data went to
    current: Tensor  # the model a client uses now
    reference: Tensor  # how badly the best model did when the client was last asked
    drifted: Tensor  # in this step
    created: Tensor  # the model that this step's drift made


def rows_of(state: Assignments) -> dict[int, int]:
    """The row of every client that was ever selected."""
    return {client: row for row, client in enumerate(state.ids.tolist()) if client != NONE}


@dataclass(frozen=True, kw_only=True)
class ModelPerDrift(Part):
    """All clients that drift in one time step share one new model; the others use the best one.

    In a time step a client measures all models on its new data when it is first selected; it has
    drifted if ``best > reference + delta``, and then ``reference <- best`` (before training). The
    new model is a copy of the first drifted client's best. Each model that somebody uses is trained
    by all selected clients with data ever assigned to it, on all of these, weighed by their amount.
    Scores that differ by rounding are equal: that is no drift, and the first of equal models is the
    best. Jothimurugesan et al., "Federated Learning under Distributed Concept Drift"
    (FedDrift-Eager), 2023.

    Parameters: ``delta`` (0.1), ``every`` (10; rounds of a time step), ``cap`` (3; most models, the
    number of concepts and one more), ``score`` (``accuracy``, as in the authors' code: the share of
    wrong answers is compared, or the loss where there are no classes; ``loss``), ``new_model``
    (``copy``; ``fresh`` initialises again). At the cap the least recently used model is recycled
    and its data are forgotten; if all are in use, none is made.

    Deviations: all models are measured, those too that nobody uses now, so that a concept which
    comes back finds its model. A client that is first selected late in a step is measured then, and
    shares the model that the step has already made. Data of a step in which a client was never
    selected are left out, since nobody knows their concept. Data of a step are those that the
    client held when the step ended. In a world to which no new data come a block stands and counts
    once, as the world says (``World.block``); in a stream every step is new and counts, equal
    values too.
    """

    delta: float = 0.1
    every: int = 10
    cap: int = 3
    score: Measure = "accuracy"
    new_model: Literal["copy", "fresh"] = "copy"

    def server_state(self, view: ServerView) -> Tree:
        none = torch.full((ROWS,), NONE)
        unknown = torch.full((ROWS,), float("inf"), dtype=torch.float64)
        return Assignments(none, none[:, None], none, unknown, none >= 0, torch.tensor(NONE))

    def update_models(self, view: ServerView) -> tuple[Sequence[Model], Tree]:
        state = self._room(view.state, view)
        row = rows_of(state)
        asked = [c for c in view.cohort if int(state.history[row[c], -1]) == NONE]
        if not asked:
            return view.models, state
        answers = view.clients.ask(self.scores, stacked(view.models), asked)
        best = torch.tensor([lowest(answer) for answer in answers])
        found = torch.stack([answer[k] for answer, k in zip(answers, best, strict=True)]).cpu()
        least = found.to(torch.float64)
        rows = torch.tensor([row[client] for client in asked])
        # a share of .3 is no more than .2 + .1, though the nearest float32 is
        drifted = least > state.reference[rows] + self.delta + rounding(found)
        state = state._replace(
            reference=state.reference.index_copy(0, rows, least),
            drifted=state.drifted.index_copy(0, rows, drifted),
            # whom a drifted client leaves may be recycled
            current=state.current.index_copy(0, rows, best.where(~drifted, NONE)),
        )
        models: Sequence[Model] = view.models
        if bool(drifted.any()):
            first = int(best[drifted][0])
            models, state = self._with_new_model(view, state, first)
            if int(state.created) != NONE:
                best = best.where(~drifted, state.created)
        history = state.history.clone()
        history[rows, -1] = best
        return models, state._replace(
            history=history, current=state.current.index_copy(0, rows, best)
        )

    def assign_models(self, view: ServerView) -> Sequence[Job]:
        history, current = view.state.history, view.state.current
        used = current[current != NONE].unique().tolist()
        last, row = history.shape[1] - 1, rows_of(view.state)
        jobs = []
        for client in [c for c in view.cohort if c in row]:  # others never took part yet
            for model in used:
                steps = (history[row[client]] == model).nonzero()[:, 0].tolist()
                blocks = [view.round if s == last else (s + 1) * self.every - 1 for s in steps]
                if blocks:
                    jobs.append(Job(client, model, tuple(blocks)))
        return jobs

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        current, row = view.state.current, rows_of(view.state)
        if client in row:
            return view.models[int(current[row[client]])]
        return view.models[int(torch.bincount(current[current != NONE], minlength=1).argmax())]

    def report(self, view: ServerView) -> dict[str, Tensor]:
        return {"models": torch.tensor(len(view.models))}

    @question
    @weighs_rows
    @sends("models")
    def scores(self, view: View, payload: Tree) -> Tree:
        """How badly every model fits the client's new data."""
        return misfits(view, payload, self.score)

    def _room(self, state: Assignments, view: ServerView) -> Assignments:
        """A column for this time step, and a row for every client of the cohort; it is kept on the
        CPU, wherever a checkpoint was read to."""
        state = Assignments(*(leaf.cpu() for leaf in state))
        if view.round // self.every >= state.history.shape[1]:
            steps = view.round // self.every + 1 - state.history.shape[1]
            state = state._replace(
                history=torch.nn.functional.pad(state.history, (0, steps), value=NONE),
                drifted=torch.zeros_like(state.drifted),
                created=torch.tensor(NONE),
            )
        known = rows_of(state)
        new = [client for client in view.cohort if client not in known]
        while len(known) + len(new) > len(state.ids):
            state = _doubled(state)
        ids = state.ids.clone()
        ids[len(known) : len(known) + len(new)] = torch.tensor(new, dtype=ids.dtype)
        return state._replace(ids=ids)

    def _with_new_model(
        self, view: ServerView, state: Assignments, best: int
    ) -> tuple[Sequence[Model], Assignments]:
        """The bank with the model that this step's drift makes, if there is room for one."""
        models = list(view.models)
        if int(state.created) != NONE:
            return models, state
        fresh = self.new_model == "fresh"
        start = view.task.initial(len(models)).to(view.theta.device) if fresh else models[best]
        new = Model(*start)
        if len(models) < self.cap:
            return [*models, new], state._replace(created=torch.tensor(len(models)))
        index = self._least_recently_used(len(models), state)
        if index == NONE:
            return models, state
        models[index] = new
        history = state.history.where(state.history != index, NONE)
        return models, state._replace(history=history, created=torch.tensor(index))

    @staticmethod
    def _least_recently_used(models: int, state: Assignments) -> int:
        """The model that nobody uses now whose last use is longest ago; NONE if all are in use."""
        idle = [k for k in range(models) if not bool((state.current == k).any())]
        seen = [(state.history == k).any(0).nonzero() for k in idle]
        last = [int(found.max()) if len(found) else NONE for found in seen]
        return min(zip(last, idle, strict=True))[1] if idle else NONE


def _doubled(state: Assignments) -> Assignments:
    """As many rows again, of nobody."""
    pad, more = torch.nn.functional.pad, len(state.ids)
    return Assignments(
        pad(state.ids, (0, more), value=NONE),
        pad(state.history, (0, 0, 0, more), value=NONE),
        pad(state.current, (0, more), value=NONE),
        pad(state.reference, (0, more), value=float("inf")),
        pad(state.drifted, (0, more), value=False),
        state.created,
    )


# ---- concept models ------------------------------------------------------------------------------
# One global model per concept, where concepts are known.


@dataclass(frozen=True, kw_only=True)
class ModelPerConcept(Part):
    """An upper bound: all models train in every round, each on the clients' data of its concept.

    Every sampled client trains every model, on its data as they are under that model's concept;
    it is served the model of the concept it follows now. Panchal et al., "Flash", 2023 (Oracle).

    Deviations: concepts are the world's; a world without drift has one. "For nobody in particular"
    the model of the concept that most members follow is served.
    """

    def initial_models(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        return (view.model,) * (1 if view.oracle is None else view.oracle.concept_count)

    def assign_models(self, view: ServerView) -> Sequence[Job]:
        concepts = range(len(view.models))
        return [Job(client, c, concept=c) for c in concepts for client in view.cohort]

    def model_for(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if view.oracle is None:
            return view.model
        if client is not None:
            return view.models[view.oracle.concept(client, view.round)]
        shares = view.oracle.concept_shares(view.round)
        return view.models[max(shares, key=lambda c: (shares[c], -c))]
