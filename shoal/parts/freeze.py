"""Tensors that never move, and what it takes to choose tensors by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from shoal.errors import UserError
from shoal.layout import Layout
from shoal.part import Part
from shoal.question import question
from shoal.task import Task
from shoal.tree import Tree
from shoal.view import ServerView, View

HEAD = ("head.",)  # how the library's models name their last layer


def chosen(layout: Layout, names: Sequence[str], inside: Tensor, outside: Tensor) -> Tensor:
    """``inside`` where a tensor's name begins with one of ``names``, ``outside`` elsewhere.

    Cut and joined instead of masked, which traces to views and one copy.

    >>> layout = Layout(("body.w", "head.w"), ((2,), (1,)))
    >>> chosen(layout, ("head.",), torch.zeros(3), torch.ones(3))
    tensor([1., 1., 0.])
    """
    runs, begin = [], 0
    sized = zip(layout.names, layout.sizes, strict=True)
    for wanted, group in groupby(sized, key=lambda pair: pair[0].startswith(tuple(names))):
        end = begin + sum(size for _, size in group)
        runs.append((inside if wanted else outside)[..., begin:end])
        begin = end
    return torch.cat(runs, -1) if len(runs) > 1 else runs[0]


def share_of(layout: Layout, names: Sequence[str]) -> float:
    """The share of the vector whose names begin with one of ``names``."""
    return float(layout.mask(tuple(names)).sum()) / layout.size if names else 0.0


def require_names(layout: Layout, names: Sequence[str], all_is_fine: bool) -> None:
    """One sentence for a model that has no such tensors, or no others."""
    share = share_of(layout, names)
    if names and share == 0.0:
        raise UserError(f"the model has no tensor named {' or '.join(names)}...: it has no head")
    if share == 1.0 and not all_is_fine:
        raise UserError(f"every tensor of the model is named {' or '.join(names)}...: no body")


@dataclass(frozen=True, kw_only=True)
class FrozenHead(Part):
    """Only the body is trained; the common random head stays as it was initialised.

    Gradients flow through the head, its rate is 0 and nothing decays it. For personalised
    evaluation a client fine-tunes a copy of the whole model. Oh et al., "FedBABU: Towards Enhanced
    Representation for Federated Image Classification", 2022.

    Parameters: ``names`` (what the head's tensors begin with), ``tune_epochs`` (5; 0 evaluates the
    global model for everybody), ``tune_rate`` (the client rate).

    Deviations: fine-tuning is plain SGD on the client's training data, without the run's momentum
    or weight decay. Models without a body are refused, as the paper has no meaning for them.
    """

    names: tuple[str, ...] = HEAD
    tune_epochs: int = 5
    tune_rate: float | None = None

    def transform_task(self, task: Task) -> Task:
        require_names(task.layout, self.names, all_is_fine=False)
        return task

    def travels(self, layout: Layout) -> tuple[float, float]:
        body = 1.0 - share_of(layout, self.names)
        return body, body

    def after_step(self, view: View, x: Tensor) -> tuple[Tensor, Tree]:
        return chosen(view.layout, self.names, view.x, x), ()

    def serve(self, view: ServerView, client: int | None, memory: Tree) -> Tensor:
        if client is None or not self.tune_epochs:
            return view.theta
        (tuned,) = view.reach.ask(self.fine_tune, (), [client])
        return tuned

    @question
    def fine_tune(self, view: View, payload: Tree) -> Tree:
        """The whole model after some epochs on the client's own data."""
        x = view.received
        rate = float(view.base_rate) if self.tune_rate is None else self.tune_rate
        for epoch in range(self.tune_epochs):
            x = view.descend(x, rate, epoch)
        return x
