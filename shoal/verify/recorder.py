"""A part that only looks, so that a worked example can see where clients start and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from shoal.part import Part
from shoal.tree import Tree
from shoal.types import Kind, Reduction, Work
from shoal.view import ServerView, View


class Seen(NamedTuple):
    begun: Tensor


@dataclass(frozen=True, kw_only=True)
class Recorder(Part):
    """Reports the model each stretch begins with, and every client's start and end."""

    on: tuple[Kind, ...] = ("members", "domain", "classes", "concept")

    reduction: ClassVar[Reduction] = Reduction.STACK
    resets: ClassVar[Literal["nothing", "server", "both"]] = "nothing"

    def server_state(self, view: ServerView) -> Tree:
        return Seen(view.theta)

    def begin(self, view: ServerView) -> Tree:
        return Seen(view.theta)

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        return delta, (view.start, view.x)

    def report(self, view: ServerView) -> dict[str, Tensor]:
        starts, ends = view.payload
        return {"local_start": starts, "local_end": ends, "begun": view.state.begun}
