"""Pulls towards the model that a task started from, against forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent, Stepped
from shoal.tree import Tree
from shoal.types import Kind
from shoal.view import ServerView, View


class Anchor(NamedTuple):
    point: Tensor
    task: Tensor  # tasks begun before this one


@dataclass(frozen=True, kw_only=True)
class TaskAnchor(Part):
    """What both anchors share: the model the task started from, and the server rate ``1/i``."""

    lam: float = 0.25
    decay_rate: bool = True
    on: tuple[Kind, ...] = ("domain", "classes")

    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def server_state(self, view: ServerView) -> Tree:
        return Anchor(view.theta, torch.zeros((), dtype=view.theta.dtype))

    def begin(self, view: ServerView) -> Tree:
        return Anchor(view.theta, view.state.task + 1.0)

    def server_rate(self, view: ServerView) -> float | Tensor:
        return 1.0 / (view.state.task + 1.0) if self.decay_rate else 1.0

    def report(self, view: ServerView) -> dict[str, Tensor]:
        """How far the task has moved the model, and the largest update that a client sent."""
        assert view.uploads is not None
        moved = torch.linalg.vector_norm(view.theta - view.state.point)
        return {
            "anchor_distance": moved,
            "largest_update": moved.new_tensor(max(view.uploads.norms)),
        }


@dataclass(frozen=True, kw_only=True)
class ServerAnchor(TaskAnchor):
    """From the second task on, ``w <- (w + lam anchor) / (1 + lam)`` after the server step.

    "Server-Proximal Aggregation for Federated Domain-Incremental Learning under Partial
    Participation" (SPECIAL), eq. (6). Parameters: ``lam`` (0.25, the paper's for Digit-10),
    ``decay_rate`` (the server rate is multiplied by ``1/i`` in task i).

    Deviations: no anchor in the first task, as the text says (the listing anchors to a random
    model there). The anchor is the model the task started from: the previous task's last model, or
    the constructed one where a session start built it.
    """

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        lam = self.lam * (view.state.task > 0).to(theta.dtype)
        return Stepped((theta + lam * view.state.point) / (1.0 + lam), view.state)


class Pull(NamedTuple):
    point: Tensor
    strength: Tensor


@dataclass(frozen=True, kw_only=True)
class ClientAnchor(TaskAnchor):
    """From the second task on, ``x <- (x + 2 lam anchor) / (1 + 2 lam)`` at the end of every epoch.

    SPECIAL-C of the same paper. Parameters: ``lam`` (0.2; 0.1 for PACS), ``every`` (``epoch``, as
    the listing; ``step``, as section 5 says; ``rate``, at every step with ``lam`` times the rate of
    the step, the size that a proximal step of the loss would have).

    Deviations: the mean is over the sampled clients (the paper prints all), and the true
    displacement goes up. The anchor point is paid for once a task.
    """

    lam: float = 0.2
    every: Literal["epoch", "step", "rate"] = "epoch"

    payload_once: ClassVar[Literal["round", "stage"]] = "stage"

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        strength = 2.0 * self.lam * (view.state.task > 0).to(theta.dtype)
        return Sent(theta, Pull(view.state.point, strength))

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        if self.every == "epoch":
            return x, ()
        return self._pulled(view, x, view.rate if self.every == "rate" else 1.0), ()

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return (self._pulled(view, view.x, 1.0) if self.every == "epoch" else view.x), ()

    def _pulled(self, view: View, x: Tensor, share: Tensor | float) -> Tensor:
        strength = view.sent.strength * share
        return (x + strength * view.sent.point) / (1.0 + strength)
