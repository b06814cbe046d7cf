"""What they share: the task counter, the last task's model, training on the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core import rng
from shoal.core.states import state
from shoal.core.tree import Tree
from shoal.core.types import Kind, Work
from shoal.methods.slots import Part, Sent
from shoal.methods.view import ServerView, View

# ---- tasks ---------------------------------------------------------------------------------------
# What the methods against forgetting share: the number of the task, the model that ended one.


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

    def session_begins(self, view: ServerView) -> Tree:
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

    def client_session_end(self, view: View) -> Tree:
        kept, ended = view.memory, view.sent.task
        fresh = (kept.task == ended) if self.previous_only else (kept.task >= 0.0)
        known = fresh.to(kept.known.dtype)
        if not self.previous_only:
            known = torch.maximum(known, kept.known)
        return kept._replace(last=torch.where(fresh, kept.current, kept.last), known=known)


# ---- descent -------------------------------------------------------------------------------------
# Training on the server: seeded noise and Adam on one vector.


def source(view: ServerView, *what: int) -> torch.Generator:
    """Random numbers of the server in this round, from the run's seed."""
    key = rng.keys(view.seed, rng.Purpose.PART, view.round, *what)
    return torch.Generator().manual_seed(int(key[0] >> 1))


def normals(like: Tensor, drawn: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers of the type and on the device of ``like``."""
    return torch.randn(*shape, generator=drawn, dtype=like.dtype).to(like.device)


def minimised(
    value: Callable[[Tensor], Tensor],
    start: Tensor,
    iterations: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Tensor:
    """``start`` after some iterations of Adam on ``value``, which draws anew at every call."""
    with torch.enable_grad():
        x = start.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=rate, betas=betas)
        for _ in range(iterations):
            optimizer.zero_grad()
            value(x).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return x.detach()
