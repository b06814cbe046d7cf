"""What a session starts from when members have changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Kind, Model
from shoal.methods.slots import Part
from shoal.methods.view import ServerView

Similarity = Literal["per_tensor_normalized", "l2"]


@state("session_start.sessions")
class SessionHistory(NamedTuple):
    """``session`` counts sessions begun; ``last``, ``probes``: one row a post-pilot session."""

    session: Tensor
    pilot: Tensor  # [P + S]: sum of the pilot sessions' last models, then their mean
    last: Tensor  # [past, P + S]
    probes: Tensor  # [past (+ 1), P]
    weights: Tensor  # the mix of the newest start
    distances: Tensor  # and how far its probe lay from the past ones (similarity only)


@dataclass(frozen=True, kw_only=True)
class SessionStart(Part):
    """Builds the first model of a session from models that ended earlier ones.

    ``strategy``: ``similarity`` (DynamicInit: softmin of the distance between probe displacements),
    ``average`` (plain mean), ``previous`` (the last one). "Federated Learning with Dynamic Client
    Arrival and Departure", 2025, Algorithm 1 and eq. (5).

    1. Sessions ``0..P-1`` are the pilot; ``w_pilot`` is the mean of their last models.
    2. At every later session: ``V`` rehearsed rounds with all members from ``w_pilot`` give
       ``G_s = u^V - w_pilot``; ``alpha_z = softmax(-R dist(G_s, G_z))`` over past post-pilot
       sessions; the start is ``sum_z alpha_z w_z^last``.

    Every session begins with fresh states of the server's side (and of SCAFFOLD's variates), those
    of the pilot too.

    Running statistics and every other floating buffer are part of a model: mixed with the same
    ``alpha_z``, the pilot's for the probe, the initial model's where session P starts from ``w^0``.
    ``G_s`` and distances see trainable parameters only. A part with a mixing rule of its own uses
    ``mixed`` in its ``start_model``: it takes any weights, and buffers see convex ones only.

    Parameters: ``P`` (1; 0, without a pilot, for ``average`` and ``previous`` only), ``V`` (1),
    ``R`` (10), ``similarity`` (``per_tensor_normalized``: each weight tensor of G scaled to unit
    length, biases left out, distances averaged over tensors, as in the released code; ``l2``: eq.
    (5)), ``probe_rate`` (times the session's rate: 0.5, as released), ``first_session``
    (``latest``: session P goes on with the newest model; ``initial``: it starts from ``w^0``, as
    released, and the pilot's model only serves probes), ``pilot`` (``trained``; ``random``: probes
    begin at ``w^0`` instead of ``w_pilot``, the paper's Table 14), ``keep`` (most past sessions
    remembered; None keeps all).

    Deviations: ``w^(V-1)`` and ``w^(sT+T-1)`` are read as "after V" and "after T" aggregations;
    ``G_s`` is saved for every ``s >= P``. The default similarity is the released code's and not eq.
    (5); so are ``probe_rate`` and the fresh states at every session, of which the paper says
    nothing. Probes weigh clients as the run does. Tensors of zero length are skipped. The
    pseudo-code uses ``w_P^init`` without defining it; the authors' code takes ``w^0``, which is not
    the default here because it throws a trained model away. The paper does not mention buffers; the
    mean of variances leaves out the spread between the sessions' means, as in the released code.
    Counters of batches are not kept (see ``ModuleTask``), so none is mixed.
    """

    strategy: Literal["similarity", "average", "previous"] = "similarity"
    P: int = 1
    V: int = 1
    R: float = 10.0
    similarity: Similarity = "per_tensor_normalized"
    probe_rate: float = 0.5
    first_session: Literal["initial", "latest"] = "latest"
    pilot: Literal["trained", "random"] = "trained"
    keep: int | None = None
    on: tuple[Kind, ...] = ("members",)

    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"
    one_model_only: ClassVar[bool] = True

    @property
    def asks_between_sessions(self) -> bool:
        return self.strategy == "similarity"

    def server_state(self, view: ServerView) -> Tree:
        empty = view.theta.new_zeros
        width = view.theta.numel() + view.model.stats.numel()
        size = view.theta.numel()
        return SessionHistory(
            empty(()), empty(width), empty(0, width), empty(0, size), empty(0), empty(0)
        )

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        state, ended = view.state, torch.cat([view.theta, view.model.stats])
        if int(state.session) < self.P:
            return state._replace(pilot=state.pilot + ended / self.P), ()
        last = torch.cat([state.last, ended[None]])
        if self.keep is not None and last.shape[0] > self.keep:
            last = last[-self.keep :]
            state = state._replace(probes=state.probes[-self.keep :])
        return state._replace(last=last), ()

    def start_model(self, view: ServerView) -> tuple[Model | None, Tree]:
        state = view.state._replace(session=view.state.session + 1.0)
        session = int(state.session)
        newest = Model(view.theta, view.model.stats)
        if session < self.P:
            return newest, state  # a model, and not None: states begin anew here too
        if self.strategy == "similarity":
            state = state._replace(probes=torch.cat([state.probes, self._probe(view)[None]]))
        if session == self.P:
            return (newest if self.first_session == "latest" else _initial(view)), state
        distances = self._distances(view, state)
        weights = self._weights(state, distances)
        state = state._replace(weights=weights, distances=distances)
        return mixed(state.last, weights, view.theta.numel()), state

    def _probe(self, view: ServerView) -> Tensor:
        """Where the members here would take the pilot model."""
        size = view.theta.numel()
        pilot = Model(view.state.pilot[:size], view.state.pilot[size:])
        if self.pilot == "random":
            pilot = _initial(view)
        return view.clients.rehearse(pilot, self.V, self.probe_rate * view.rate) - pilot.theta

    def _distances(self, view: ServerView, state: SessionHistory) -> Tensor:
        """How far the newest probe lies from each past one."""
        if self.strategy != "similarity":
            return state.last.new_zeros(0)
        now = state.probes[-1]
        return torch.stack([self._distance(view, now, g) for g in state.probes[:-1]])

    def _weights(self, state: SessionHistory, distances: Tensor) -> Tensor:
        """The weight of each past post-pilot session, the oldest first."""
        past = state.last.shape[0]
        if self.strategy == "average":
            return state.last.new_full((past,), 1.0 / past)
        if self.strategy == "previous":
            return torch.eye(past, dtype=state.last.dtype, device=state.last.device)[-1]
        return torch.softmax(-self.R * distances, 0)

    def _distance(self, view: ServerView, a: Tensor, b: Tensor) -> Tensor:
        if self.similarity == "l2":
            return torch.linalg.vector_norm(a - b)
        found = []
        for name, where in view.layout.slices.items():
            lengths = [torch.linalg.vector_norm(g[where]) for g in (a, b)]
            if "bias" in name or min(float(n) for n in lengths) == 0.0:
                continue
            found.append(torch.linalg.vector_norm(a[where] / lengths[0] - b[where] / lengths[1]))
        return torch.stack(found).mean() if found else a.new_zeros(())

    def report(self, view: ServerView) -> dict[str, Tensor]:
        """The newest start: its number, the past sessions' weights in it and their distances."""
        state = view.state
        return {
            "session_started": state.session,
            "session_weights": state.weights,
            "session_distances": state.distances,
        }


def mixed(models: Tensor, weights: Tensor, size: int) -> Model:
    """The weighted sum of models (rows: ``size`` parameters, then buffers, the newest last).

    Buffers see convex weights only: a sum with other ones can make a variance negative, or move a
    divisor to 0. Weights outside [0, 1], or that do not sum to 1, become
    ``max(alpha_z, 0) / sum_z max(alpha_z, 0)`` for them; if none is positive, the buffers are
    those of the newest model.

    >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> mixed(rows, torch.tensor([1.5, -0.5]), 1)
    Model(theta=tensor([0.]), stats=tensor([2.]))
    """
    total = (weights[:, None] * models).sum(0)
    positive = weights.clamp_min(0.0)
    convex = torch.equal(positive, weights) and abs(float(weights.sum()) - 1.0) <= 1e-5
    if convex or models.shape[1] == size:
        return Model(total[:size], total[size:])
    buffers, share = models[:, size:], float(positive.sum())
    stats = (positive[:, None] / share * buffers).sum(0) if share > 0.0 else buffers[-1]
    return Model(total[:size], stats)


def _initial(view: ServerView) -> Model:
    """The model that the run began with, its running statistics too."""
    assert view.initial_stats is not None, "a view of a federation knows its initial model"
    return Model(view.initial, view.initial_stats)
