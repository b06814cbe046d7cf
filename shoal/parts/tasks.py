"""What the methods against forgetting share: the number of the task, the model that ended one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Kind, Work
from shoal.view import ServerView, View


@state("tasks.count")
class Count(NamedTuple):
    task: Tensor  # tasks begun before this one


@dataclass(frozen=True, kw_only=True)
class TaskPart(Part):
    """Hears new tasks; a constructed start leaves its memories alone."""

    on: tuple[Kind, ...] = ("domain", "classes")

    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def _first_task(self, view: View) -> bool:
        """Whether no task can have ended yet, known without looking at a tensor."""
        return view.stage == 0 and set(self.on) <= {"domain", "classes"}


@state("tasks.last_task")
class LastTask(NamedTuple):
    current: Tensor  # the local model of the newest round
    task: Tensor  # the task that model belongs to
    last: Tensor  # the local model at the end of an earlier task
    known: Tensor  # 1 if there is one, else 0


@dataclass(frozen=True, kw_only=True)
class LastTaskModel(TaskPart):
    """A client keeps the local model with which it ended a task.

    ``previous_only``: a client that was not seen in the task that just ended has none; otherwise
    it keeps what it has.
    """

    previous_only: ClassVar[bool] = True

    def server_state(self, view: ServerView) -> Tree:
        return Count(torch.zeros((), dtype=view.theta.dtype, device=view.theta.device))

    def begin(self, view: ServerView) -> Tree:
        return view.state._replace(task=view.state.task + 1.0)

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, Count(view.state.task))

    def session_end(self, view: ServerView) -> tuple[Tree, Tree]:
        return view.state, Count(view.state.task)

    def memory(self, view: View) -> Tree:
        zero = torch.zeros_like(view.sent.task)
        return LastTask(view.received, zero - 1.0, view.received, zero)

    def client_end(self, view: View, work: Work) -> Tree:
        return view.memory._replace(current=view.x, task=view.sent.task)

    def member_end(self, view: View) -> Tree:
        kept, ended = view.memory, view.sent.task
        fresh = (kept.task == ended) if self.previous_only else (kept.task >= 0.0)
        known = fresh.to(kept.known.dtype)
        if not self.previous_only:
            known = torch.maximum(known, kept.known)
        return kept._replace(last=torch.where(fresh, kept.current, kept.last), known=known)
