"""Control variates that remove client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.part import Part, Sent, Stepped
from shoal.question import question, sends
from shoal.states import state
from shoal.tree import Tree
from shoal.types import Kind, Reduction, Work
from shoal.view import GradFn, ServerView, View


@state("scaffold.variate")
class Variate(NamedTuple):
    c: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlVariate(Part):
    """Local gradient ``g(x) - c_i + c``; server ``c <- c + (1/N) sum (c_i+ - c_i)``.

    Karimireddy et al., "SCAFFOLD", 2020. ``option`` 1: ``c_i+`` is the full local gradient at the
    received model (one more pass over the data); 2 (default): ``c_i+ = c_i - c + (start - x)/(K
    eta)`` with the steps and rates that were really used.

    Deviations: N is the number of members present, and when members change ``c`` becomes the mean
    of the variates of those who are here; the paper's clients are always the same. The displacement
    is taken from where the client started (the received model, unless a relaxed start moved it), as
    in the public code that combines the two. A constructed session start resets ``c`` and every
    ``c_i``, so that ``c = mean c_i`` stays true.
    """

    option: Literal[1, 2] = 2
    on: tuple[Kind, ...] = ("members",)

    reduction: ClassVar[Reduction] = Reduction.SUM
    resets: ClassVar[Literal["nothing", "server", "both"]] = "both"

    @property
    def displacement_memory(self) -> bool:
        return self.option == 2

    @property
    def train_data(self) -> bool:
        return self.option == 1

    def server_state(self, view: ServerView) -> Tree:
        return Variate(torch.zeros_like(view.theta))

    def memory(self, view: View) -> Tree:
        return Variate(torch.zeros_like(view.received))

    def broadcast(self, view: ServerView, theta: Tensor) -> Sent:
        return Sent(theta, view.state)

    def grad(self, view: View, inner: GradFn) -> Tensor:
        return inner(view.x) + (view.sent.c - view.memory.c)

    def client_end(self, view: View, work: Work) -> Tree:
        if self.option == 1:
            return Variate(view.full_grad(view.received))
        return Variate(view.memory.c - view.sent.c + (view.start - view.x) / work.rate_sum)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Variate(view.kept.c - view.memory.c)

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        return Stepped(theta, Variate(view.state.c + view.payload.c / len(view.members)))

    def begin(self, view: ServerView) -> Tree:
        if view.shift is None or "members" not in view.shift.kinds:
            return view.state
        known = view.reach.remembered(view.members)
        total = torch.zeros_like(view.theta)
        for answer in view.reach.ask(self.own_variate, (), known):
            total = total + answer.c
        return Variate(total / len(view.members))

    @question
    @sends("nothing")
    def own_variate(self, view: View, payload: Tree) -> Tree:
        """The client's variate, asked when members change."""
        return view.memory
