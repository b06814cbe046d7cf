"""A buffer of a client's most useful samples of past tasks, replayed with the new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Batch, ClientData, Reduction, Target, Work
from shoal.methods.parts.continual.tasks import TaskPart
from shoal.methods.slots import Sent, Stepped
from shoal.methods.view import ServerView, View
from shoal.models.generators import feature_width


@state("replay.samples")
class Samples(NamedTuple):
    """Rows of the pool with the labels the client saw; -1 is an empty place."""

    rows: Tensor
    labels: Tensor


@state("replay.buffer")
class Buffer(NamedTuple):
    replayed: Samples  # of ended tasks
    chosen: Samples  # what the buffer would be if the task ended now


@state("replay.prototypes")
class ReplayPrototypes(NamedTuple):
    """``[C, F]`` class means (sums on the way up) of features, ``[C]`` samples behind them."""

    means: Tensor
    counts: Tensor


def scaled(values: Tensor) -> Tensor:
    """Min-max to [0, 1]; a constant list becomes 0."""
    low, high = values.min(), values.max()
    return torch.where(high > low, (values - low) / (high - low), torch.zeros_like(values))


def scores(domain: Tensor, collaborative: Tensor, lam: float) -> Tensor:
    """``lam dom + (1 - lam) col``, both scaled to [0, 1]."""
    return lam * scaled(domain) + (1.0 - lam) * scaled(collaborative)


def best(score: Tensor, size: int) -> Tensor:
    """Places of the ``size`` highest scores, the highest first; of equals the lower place."""
    return torch.argsort(score, descending=True, stable=True)[:size]


def class_sums(features: Tensor, labels: Tensor, classes: int) -> ReplayPrototypes:
    """Sums of features by class, and how many."""
    hits = (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).to(features.dtype)
    return ReplayPrototypes(hits.T @ features, hits.sum(0))


def closeness(features: Tensor, labels: Tensor, known: ReplayPrototypes) -> Tensor:
    """Minus the distance to the own class's mean; where nobody knows it, as far as the farthest."""
    distance = torch.linalg.vector_norm(features - known.means[labels], dim=-1)
    there = known.counts[labels] > 0
    return -torch.where(there, distance, distance.max())


@dataclass(frozen=True, kw_only=True)
class ReplayBuffer(TaskPart):
    """Trains on new data and a buffer of at most ``B`` samples of ended tasks.

    A sample's score is ``lam dom + (1 - lam) col``, both min-max scaled over the client's samples:
    ``dom`` is the closeness of its feature under the local model to the local class mean, ``col``
    that of its feature under the global model to the global class prototype. The ``B`` best of
    buffer and new data are kept. Li et al., "SR-FDIL: Synergistic Replay for Federated
    Domain-Incremental Learning", 2024: a reconstruction from summaries, not the authors' code.

    Parameters: ``lam`` (0.5), ``B`` (1000 a client).

    Deviations: a reconstruction throughout. Closeness is minus the Euclidean distance. The choice
    is made anew at the end of every round a client takes part in, because only the server knows
    when a task ends; it becomes the buffer when the task has ended. Prototypes are class means
    under the received model (uploaded as sums and counts) of the newest round with that class.
    A buffered sample is a row of the world's pool, and one that the new data has is not trained on
    twice. ``n_i`` counts new data only. Clients are sampled as the run says, not re-weighted.
    """

    lam: float = 0.5
    B: int = 1000

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    reduction: ClassVar[Reduction] = Reduction.SUM
    loop_only_reason: ClassVar[str] = (
        "its buffer is rows of the pool, and only the loop engine shows a client its rows"
    )

    @property
    def train_data(self) -> bool:
        return True

    # ---- server: prototypes ----
    def server_state(self, view: ServerView) -> Tree:
        classes, zeros = view.task.classes or 1, view.theta.new_zeros
        return ReplayPrototypes(zeros(classes, feature_width(view.task)), zeros(classes))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state if self.B else ())

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        sums = view.payload
        if not sums:
            return Stepped(theta, view.state)
        here = sums.counts > 0
        means = sums.means / sums.counts.clamp_min(1.0).unsqueeze(-1)
        means = torch.where(here.unsqueeze(-1), means, view.state.means)
        return Stepped(
            theta, ReplayPrototypes(means, torch.where(here, sums.counts, view.state.counts))
        )

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        return view.state, ()

    # ---- client: the buffer ----
    def memory(self, view: View) -> Tree:
        none = torch.full((self.B,), -1, dtype=torch.int64, device=view.received.device)
        return Buffer(Samples(none, none), Samples(none, none))

    def client_session_end(self, view: View) -> Tree:
        return Buffer(view.memory.chosen, view.memory.chosen)

    def data(self, memory: Tree, data: ClientData) -> ClientData:
        if memory is None:
            return data
        rows, labels = memory.replayed
        fresh = (rows >= 0) & ~torch.isin(rows, data.rows)
        if not bool(fresh.any()):
            return data
        weight = data.weight
        if weight is not None:
            weight = torch.cat([weight, weight.new_ones(int(fresh.sum()))])
        both = torch.cat([data.rows, rows[fresh]]), torch.cat([data.labels, labels[fresh]])
        return replace(data, rows=both[0], labels=both[1], weight=weight)

    def client_end(self, view: View, work: Work) -> Tree:
        if self.B == 0:
            return view.memory
        assert view.train is not None and view.rows is not None
        order = best(self._scores(view, view.train), self.B)
        empty = self.B - order.shape[0]
        found = (view.rows[order], view.train.y[order])
        chosen = (torch.nn.functional.pad(t, (0, empty), value=-1) for t in found)
        return view.memory._replace(chosen=Samples(*chosen))

    def _scores(self, view: View, train: Batch) -> Tensor:
        own = view.forward(view.x, train).features
        sums = class_sums(own, train.y, view.sent.counts.shape[0])
        local = ReplayPrototypes(sums.means / sums.counts.clamp_min(1.0).unsqueeze(-1), sums.counts)
        shared = view.forward(view.received, train).features
        domain, common = closeness(own, train.y, local), closeness(shared, train.y, view.sent)
        return scores(domain, common, self.lam)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        if self.B == 0:
            return delta, ()
        assert view.train is not None
        features = view.forward(view.received, view.train).features
        return delta, class_sums(features, view.train.y, view.sent.counts.shape[0])
