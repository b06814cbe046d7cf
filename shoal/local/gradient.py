"""The gradients of a local step: plain, over all local data, and the method's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from shoal.local.differentiate import grad, grad_and_more
from shoal.part import Part
from shoal.task import Task, mean_loss
from shoal.types import Batch, Terms
from shoal.view import GradFn, View

Own = Callable[[View, int], View]  # the view of the part with that number
Fillers = Sequence[tuple[int, Part]]


def plain_gradient(task: Task, batch: Batch, stats: Tensor) -> GradFn:
    """Of the base loss on a batch, without terms, wrappers or decay."""

    def value(theta: Tensor) -> Tensor:
        return mean_loss(task, task.forward(theta, batch, stats, True), batch)

    return grad(value)


def full_gradient(task: Task, train: Batch, stats: Tensor, decay: float) -> GradFn:
    """Of the base loss over all local data, weight decay included."""
    plain = plain_gradient(task, train, stats)
    return lambda theta: plain(theta) + decay * theta if decay else plain(theta)


def method_gradient(
    view: View, own: Own, terms: Fillers, wrappers: Fillers, seen: list[Tensor]
) -> GradFn:
    """Base loss and terms over one forward pass, wrapped by the parts, leftmost innermost.

    ``seen`` is given the running statistics after each pass.
    """
    batch, task = view.batch, view.task
    assert batch is not None

    def value(theta: Tensor) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        outputs = task.forward(theta, batch, view.stats, True)
        loss = mean_loss(task, outputs, batch)
        found = [part.terms(own(replace(view, x=theta), i), outputs) for i, part in terms]
        return _combined(loss, found), (outputs.stats, _pulls(found))

    def base(theta: Tensor) -> Tensor:
        g, (stats, pulls) = grad_and_more(value)(theta)
        seen.append(stats)
        total: Tensor = g
        for pull in pulls:
            total = total + pull
        return total

    gradient: GradFn = base
    for i, part in wrappers:
        gradient = _wrapped(part, i, gradient, view, own)
    return gradient


def _combined(loss: Tensor, found: list[Terms]) -> Tensor:
    for term in found:
        if not (isinstance(term.weight, float) and term.weight == 1.0):
            loss = loss * term.weight
    for term in found:
        if term.extra is not None:
            loss = loss + term.extra
    return loss


def _pulls(found: list[Terms]) -> list[Tensor]:
    return [term.pull for term in found if term.pull is not None]


def _wrapped(part: Part, index: int, inner: GradFn, view: View, own: Own) -> GradFn:
    def gradient(theta: Tensor) -> Tensor:
        return part.grad(own(replace(view, x=theta), index), inner)

    return gradient
