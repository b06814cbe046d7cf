"""Several global models, each client training the one that fits it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.part import Part
from shoal.question import question, sends, weighs_rows
from shoal.tree import Tree
from shoal.types import Job, Model
from shoal.view import ServerView, View

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
            rows = (outputs.logits.argmax(-1) != batch.y).to(theta.dtype)
        else:
            rows = view.task.row_losses(outputs, batch)
        out.append(batch.mean(rows))
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

    def init_bank(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        here = view.theta.device
        others = [view.task.initial(seed + j).to(here) for j in range(1, self.k)]
        if any(torch.equal(view.theta, other.theta) for other in others):
            raise UserError(
                f"the {self.k} models would start alike and never separate; "
                "the task must give another start for another seed"
            )
        return (view.model, *others)

    def route(self, view: ServerView) -> Sequence[Job]:
        answers = view.reach.ask(self.losses, stacked(view.models), view.cohort)
        pairs = zip(view.cohort, answers, strict=True)
        return [Job(client, lowest(losses)) for client, losses in pairs]

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if client is None:
            return view.models[0]
        (losses,) = view.reach.ask(self.losses, stacked(view.models), [client])
        return view.models[lowest(losses)]

    @question
    @weighs_rows
    @sends("models")
    def losses(self, view: View, payload: Tree) -> Tree:
        """The mean training loss of every model on the client's data."""
        return misfits(view, payload, "loss")
