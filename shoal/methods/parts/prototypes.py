"""A header that the server trains on clients' class prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.layout import Layout
from shoal.core.states import state
from shoal.core.task import Task
from shoal.core.tree import Tree
from shoal.core.types import Batch, Reduction, Target, Work
from shoal.methods.parts.personal import HEAD, require_names
from shoal.methods.slots import Part, Stepped
from shoal.methods.view import ServerView, View
from shoal.models.generators import feature_width


@state("fedgh.prototypes")
class ClassPrototypes(NamedTuple):
    """``mean`` is ``[classes, d]``; a class that the client does not have has 0 samples."""

    mean: Tensor
    samples: Tensor


@state("fedgh.header")
class Header(NamedTuple):
    """``logits = weight z + bias``, the bias where there is one; row = class."""

    weight: Tensor
    bias: Tensor | None


def class_means(features: Tensor, batch: Batch, classes: int) -> ClassPrototypes:
    """The mean representation of every class over the samples of a batch.

    >>> batch = Batch(torch.zeros(3, 1), torch.tensor([1, 1, 0]))
    >>> class_means(torch.tensor([[2.0], [4.0], [1.0]]), batch, 3).mean.squeeze(1)
    tensor([1., 3., 0.])
    """
    numbers = torch.arange(classes, device=features.device)
    member = (batch.y.unsqueeze(-1) == numbers).to(features.dtype)
    if batch.weight is not None:
        member = member * batch.weight.unsqueeze(-1)
    samples = member.sum(0)
    return ClassPrototypes((member.T @ features) / samples.clamp_min(1e-12).unsqueeze(-1), samples)


def trained_header(
    header: Header, z: Tensor, labels: Tensor, rate: float, batch: int | None = 1
) -> Header:
    """One pass of SGD on the mean cross-entropy of ``batch`` pairs at a time (None: all of them).

    Each step is ``W <- W - rate (softmax(W z + b) - onehot)^T z / n``, and so for the bias.
    """
    weight, bias = header
    size = batch or max(1, len(labels))
    targets = torch.nn.functional.one_hot(labels, weight.shape[0]).to(z.dtype)
    for points, wanted in zip(torch.split(z, size), torch.split(targets, size), strict=True):
        logits = points @ weight.T
        error = torch.softmax(logits if bias is None else logits + bias, -1) - wanted
        weight = weight - rate * (error.T @ points) / len(points)
        bias = None if bias is None else bias - rate * error.mean(0)
    return Header(weight, bias)


@dataclass(frozen=True, kw_only=True)
class PrototypeHeader(Part):
    """Clients upload the mean representation of each local class; the server trains the header.

    For every uploaded pair, in the order of clients and then classes, one SGD step on
    ``CE(H(z), c)``. Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global
    Header", 2023. Representations are sample means, in evaluation mode, after local training.

    Parameters: ``header_rate`` (the client rate), ``pairs`` (1; pairs of a server step, None takes
    all of a round at once), ``names`` (what the header's tensors begin with).

    Deviations: the header has an optimiser of its own with cleared gradients (in the released
    script it would not learn), and prototypes are sample means (the script averages batch means).
    All clients share one architecture. A model without a body has its inputs as representation.
    """

    header_rate: float | None = None
    pairs: int | None = 1
    names: tuple[str, ...] = HEAD

    targets: ClassVar[tuple[Target, ...]] = ("class",)
    reduction: ClassVar[Reduction] = Reduction.STACK

    @property
    def train_data(self) -> bool:
        return True

    def transform_task(self, task: Task) -> Task:
        require_names(task.layout, self.names, all_is_fine=True)
        if task.classes is None or self._header(task.layout) is None:
            raise UserError("prototypes need a task with classes and a linear header")
        self._check_width(task)
        return task

    def _check_width(self, task: Task) -> None:
        """Features are what the header takes, as far as a pass can be tried."""
        layout, names = task.layout, self._header(task.layout) or ()
        if all(n.startswith(self.names) for n in layout.names) or not getattr(task, "shape", None):
            return
        takes = dict(zip(layout.names, layout.shapes, strict=True))[names[0]][1]
        if (given := feature_width(task)) != takes:
            raise UserError(
                f"fedgh trains {names[0]!r}, which takes {takes} numbers per sample, on the "
                f"network's features, which are {given}; return (logits, features), features being "
                f"what the last layer takes"
            )

    def upload(self, view: View, delta: Tensor, work: Work) -> tuple[Tensor, Tree]:
        assert view.train is not None, "the part asks for the training data"
        features = view.forward(view.x, view.train).features
        if all(name.startswith(self.names) for name in view.layout.names):
            features = view.train.x.flatten(1)
        return delta, class_means(features, view.train, view.task.classes or 0)

    def after_server_step(self, view: ServerView, theta: Tensor) -> Stepped:
        names = self._header(view.layout)
        if names is None:
            return Stepped(theta, ())
        there = view.payload.samples > 0  # [clients, classes]
        labels = there.nonzero()[:, 1]
        rate = view.rate if self.header_rate is None else self.header_rate
        tensors = view.layout.unflatten(theta)
        before = Header(tensors[names[0]], tensors[names[1]] if names[1:] else None)
        after = trained_header(before, view.payload.mean[there], labels, rate, self.pairs)
        tensors |= {name: t for name, t in zip(names, after, strict=False) if t is not None}
        return Stepped(view.layout.flatten(tensors), ())

    def _header(self, layout: Layout) -> Sequence[str] | None:
        """Names of the header's weight and, where it has one, its bias; None: it is not linear."""
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        own = [name for name in layout.names if name.startswith(self.names)]
        if [len(shapes[name]) for name in own] not in ([2], [2, 1]):
            return None
        return own
