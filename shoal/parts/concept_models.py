"""One global model a concept, for somebody who knows the concepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.part import Part
from shoal.tree import Tree
from shoal.types import Job, Model
from shoal.view import ServerView


@dataclass(frozen=True, kw_only=True)
class ModelPerConcept(Part):
    """An upper bound: all models train in every round, each on the clients' data of its concept.

    Every sampled client trains every model, on its data as they are under that model's concept;
    it is served the model of the concept it follows now. Panchal et al., "Flash", 2023 (Oracle).

    Deviations: concepts are the world's; a world without drift has one. "For nobody in particular"
    the model of the concept that most members follow is served.
    """

    def init_bank(self, view: ServerView, seed: int) -> tuple[Model, ...]:
        return (view.model,) * (1 if view.truth is None else view.truth.concept_count)

    def route(self, view: ServerView) -> Sequence[Job]:
        concepts = range(len(view.models))
        return [Job(client, c, concept=c) for c in concepts for client in view.cohort]

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor | Model:
        if view.truth is None:
            return view.model
        if client is not None:
            return view.models[view.truth.concept(client, view.round)]
        shares = view.truth.concept_shares(view.round)
        return view.models[max(shares, key=lambda c: (shares[c], -c))]
