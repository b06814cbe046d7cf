"""Measures of how far local models drift apart; they change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.metrics.divergence import divergence, mean_distance, upload_spread
from shoal.part import Part
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Reduction, Work
from shoal.view import ServerView, View


@state("divergence.way")
class Way(NamedTuple):
    """How far a client went from the model it received."""

    square: Tensor
    way: Tensor


@state("divergence.last_local")
class LastLocal(NamedTuple):
    z: Tensor


@dataclass(frozen=True, kw_only=True)
class Divergence(Part):
    """FedInit's divergence: local models against the new global model ``w``, after the server step
    and the anchors.

    ``divergence = (1/m) sum |x_i - w|^2`` over the round's accepted clients; ``divergence_all =
    (1/N) sum |z_i - w|^2`` over all present members, ``z_i`` being a member's last local model and
    ``w^0`` that of a member never seen. ``x_i`` is the local model itself, whatever is made of the
    upload, and both means are plain whatever the aggregation weights are. ``divergence_all`` is
    reported where the server can read the last local models: a part keeps them (FedInit does),
    there is one global model, and the members are not on machines of their own.

    Sums are enough, so it works under secure aggregation; the server then learns the plain sum of
    the ways and of their squared lengths beside the weighted sum. They count as bytes only in
    methods whose clients start elsewhere than at the received model: otherwise a server that sees
    the uploads has them.

    Deviations: the paper's Delta is ``divergence_all``, and has no other; the cohort's is ours.
    """

    reduction: ClassVar[Reduction] = Reduction.SUM
    derivable_upload: ClassVar[bool] = True

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        way = view.x - view.received
        return delta, Way(way.double().square().sum(), way)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        assert view.uploads is not None and view.sent is not None
        sums: Way = view.payload
        step, count = view.theta - view.sent, len(view.uploads.clients)
        found = {"divergence": divergence(float(sums.square), sums.way, count, step)}
        if view.last_models is not None:
            found["divergence_all"] = mean_distance(view.last_models(), view.theta)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class LastModels(Part):
    """Keeps every client's last local model, one vector per client, and does nothing with it.

    Deviations: no paper; FedInit keeps the same for its start.
    """

    one_model_only: ClassVar[bool] = True

    def memory(self, view: View) -> Tree:
        return LastLocal(view.initial)

    def client_end(self, view: View, work: Work) -> Tree:
        return LastLocal(view.x)

    def last_model(self, memory: Tree) -> Tensor:
        last: LastLocal = memory
        return last.z


@dataclass(frozen=True, kw_only=True)
class UploadSpread(Part):
    """Measures ``divergence_of_uploads = sum_i w_i |d_i - d|^2`` from the norms of the uploads and
    the norm of their weighted mean. Version 0.1 reported it as ``divergence``.

    Deviations: FedInit's divergence is against the new global model. This is the same only where
    that is the plain mean of the local models: uniform weights, server rate 1, uploads as trained.
    """

    individual_norms: ClassVar[bool] = True

    def report(self, view: ServerView) -> dict[str, Tensor]:
        uploads = view.uploads
        assert uploads is not None
        mean = float(torch.linalg.vector_norm(uploads.delta.double()))
        found = upload_spread(uploads.norms, mean, uploads.weights)
        return {"divergence_of_uploads": torch.tensor(found, dtype=torch.float64)}
