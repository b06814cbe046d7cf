"""Eyes on a run: a part and an engine that look at everything and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.api import Order, Results
from shoal.engines.loop import Loop
from shoal.part import Part, Stepped
from shoal.tree import Tree
from shoal.types import Kind, Reduction, Work
from shoal.view import ServerView, View


class Seen(NamedTuple):
    begun: Tensor  # the model this stretch began with
    delta: Tensor  # the combined displacement of the last round
    stats: Tensor  # the buffers this stretch began with


class Trip(NamedTuple):
    """Where a client began and where it ended."""

    start: Tensor
    end: Tensor


@dataclass(frozen=True, kw_only=True)
class Recorder(Part):
    """Sees the model each stretch begins with, what was aggregated, and every client's trip.

    Deviations: no paper; it only looks.
    """

    on: tuple[Kind, ...] = ("members", "domain", "classes", "concept")

    reduction: ClassVar[Reduction] = Reduction.STACK
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def server_state(self, view: ServerView) -> Tree:
        return Seen(view.theta, torch.zeros_like(view.theta), view.model.stats)

    def begin(self, view: ServerView) -> Tree:
        return Seen(view.theta, view.state.delta, view.model.stats)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, Trip(view.start, view.x)

    def anchor(self, view: ServerView, theta: Tensor) -> Stepped:
        assert view.uploads is not None
        return Stepped(theta, view.state._replace(delta=view.uploads.delta))


class Watched:
    """The loop engine, with a note of what went down, and of every client's payloads (rehearsed
    rounds left out)."""

    name = "loop"

    def __init__(self) -> None:
        self.loop = Loop()
        self.payloads: dict[int, tuple[Tree, ...]] = {}
        self.sent: tuple[Tree, ...] = ()

    def train(self, order: Order) -> Iterator[Results]:
        for results in self.loop.train(order):
            if order.round >= 0:
                for row, client in enumerate(results.clients):
                    self.payloads[client] = tree.row(results.payloads, row)
                self.sent = order.sent
            yield results

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        return self.loop.ask(order, question, payload)

    def close(self) -> None:
        self.loop.close()
