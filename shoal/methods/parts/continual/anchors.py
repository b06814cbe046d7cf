"""Pulls towards the model that a task started from, against forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import state
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Kind
from shoal.methods.slots import Part, Sent, Stepped
from shoal.methods.view import ServerView, View


@state("task_anchor.anchor")
class Anchor(NamedTuple):
    point: Tensor
    task: Tensor  # tasks begun before this one
    brought: Tensor | None = None  # 1 for classes of this task; None: every task has all classes
    seen: Tensor | None = None  # 1 for classes of earlier tasks


@dataclass(frozen=True, kw_only=True)
class TaskAnchor(Part):
    """What both anchors share: the model the task started from, the server rate ``1/i``, and the
    rows of the head that no earlier task has taught, which are free."""

    lam: float = 0.25
    decay_rate: bool = True
    new_rows: Literal["free", "anchored"] = "free"
    on: tuple[Kind, ...] = ("domain", "classes")

    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def server_state(self, view: ServerView) -> Tree:
        start = Anchor(
            view.theta, torch.zeros((), dtype=view.theta.dtype, device=view.theta.device)
        )
        if self.new_rows == "anchored" or view.classes is None:
            return start
        rows = class_rows(view.task)
        brought = self._brought(view, view.theta.new_zeros(int(rows.max()) + 1))
        return start._replace(brought=brought, seen=torch.zeros_like(brought))

    def session_begins(self, view: ServerView) -> Tree:
        state = view.state._replace(point=view.theta, task=view.state.task + 1.0)
        if state.brought is None:
            return state
        return state._replace(
            brought=self._brought(view, torch.zeros_like(state.brought)),
            seen=torch.maximum(state.seen, state.brought),
        )

    @staticmethod
    def _brought(view: ServerView, none: Tensor) -> Tensor:
        """1 for the classes that the world announces with this task."""
        found = none.clone()
        found[slice(None) if view.classes is None else list(view.classes)] = 1.0
        return found

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
    ``decay_rate`` (the server rate is multiplied by ``1/i`` in task i), ``new_rows`` (where tasks
    bring classes: ``free`` leaves the head's rows of classes that no earlier task had out of the
    pull, ``anchored`` pulls them to their random start, as version 0.1 did; the same thing where
    every task has all classes).

    Deviations: running statistics are not anchored; the server takes their plain mean. The paper
    does not say what happens to new rows of a head. No anchor in the first task, as the text says
    (the listing anchors to a random model there). The anchor is the model the task started from:
    the previous task's last model, or the constructed one where a session start built it. With
    ``lam: 0`` the rate ``1/i`` stays, so it is not FedAvg, as the paper has it, but FedAvg at that
    server rate.
    """

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        lam = self.lam * (view.state.task > 0).to(theta.dtype)
        pulled = (theta + lam * view.state.point) / (1.0 + lam)
        return Stepped(taught(view.task, view.state.seen, pulled, theta), view.state)


@state("client_anchor.pull")
class Pull(NamedTuple):
    point: Tensor
    strength: Tensor
    seen: Tensor | None = None  # 1 for classes of earlier tasks, where tasks bring classes


@dataclass(frozen=True, kw_only=True)
class ClientAnchor(TaskAnchor):
    """From the second task on, ``x <- (x + 2 lam anchor) / (1 + 2 lam)`` at the end of every epoch.

    SPECIAL-C of the same paper. Parameters: ``lam`` (0.2; 0.1 for PACS), ``every`` (``epoch``, as
    the listing; ``step``, as section 5 says; ``rate``, at every step with ``lam`` times the rate of
    the step, the size that a proximal step of the loss would have), ``new_rows`` (as SPECIAL's).
    A client keeps the last task's model beside the one it trains: twice the memory of FedAvg.

    Deviations: running statistics are not anchored. The mean is over the sampled clients (the paper
    prints all), and the true displacement goes up (its listing equates it with the sum of the
    gradients, which the pull makes false). The anchor point is paid for once per task.
    """

    lam: float = 0.2
    every: Literal["epoch", "step", "rate"] = "epoch"

    payload_is_sent: ClassVar[Literal["each_round", "once_per_task"]] = "once_per_task"

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        strength = 2.0 * self.lam * (view.state.task > 0).to(theta.dtype)
        return Sent(theta, Pull(view.state.point, strength, view.state.seen))

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        if self.every == "epoch":
            return x, ()
        return self._pulled(view, x, view.rate if self.every == "rate" else 1.0), ()

    def after_epoch(self, view: View) -> tuple[Tensor, Tree]:
        return (self._pulled(view, view.x, 1.0) if self.every == "epoch" else view.x), ()

    def _pulled(self, view: View, x: Tensor, share: Tensor | float) -> Tensor:
        strength = view.sent.strength * share
        pulled = (x + strength * view.sent.point) / (1.0 + strength)
        return taught(view.task, view.sent.seen, pulled, x)


# ---- the rows of a head that grows ---------------------------------------------------------------
def class_rows(task: Task) -> Tensor:
    """The class whose row of the head each number of the vector belongs to, else -1."""
    found: Tensor | None = getattr(task, "class_rows", None)
    if found is None:
        raise UserError(
            "method special: tasks bring classes, but the network's head was not found (its last "
            "linear layer with one output per class); give it one, or set new_rows: anchored."
        )
    return found


def taught(task: Task, seen: Tensor | None, pulled: Tensor, free: Tensor) -> Tensor:
    """``pulled``, and ``free`` on rows of the head whose class no earlier task had."""
    if seen is None:
        return pulled
    rows = class_rows(task).to(seen.device)
    old = torch.cat([seen, seen.new_ones(1)])[rows]  # what is no row (-1) finds the last entry
    return torch.where(old > 0.5, pulled, free)
