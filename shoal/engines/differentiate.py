"""``torch.func.grad`` of a function of one vector, which does not import torch's compiler.

Torch's own sees to it that its compiler leaves the backward pass alone, and for that imports the
compiler: a second of every start. Nothing here is compiled.

A gradient can be differentiated again where torch's own rule says so: where gradients are on, as
they are inside of another ``torch.func.grad``. A client's round is played with gradients off, so
that a method which takes first derivatives only gets torch's fused backward passes: those of
recurrent layers and of group normalisation have none of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch.eager_transforms import (
    _create_differentiable,
    _undo_create_differentiable,
    _wrap_all_tensors,
    grad_increment_nesting,
)


def grad(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The gradient of a function with one number as its result."""
    with_nothing = grad_and_more(lambda theta: (function(theta), ()))
    return lambda theta: with_nothing(theta)[0]


def grad_and_more(
    function: Callable[[Tensor], tuple[Tensor, Any]],
) -> Callable[[Tensor], tuple[Tensor, Any]]:
    """The gradient of the first result, and the second, which is tensors in any structure.

    ``vmap`` can map it, and it can be taken inside of a function that is differentiated again.
    """

    def gradient(theta: Tensor) -> tuple[Tensor, Any]:
        again = torch.is_grad_enabled()
        # on outside of the new level too: kernels below it look there whether to keep a workspace
        with torch.enable_grad(), grad_increment_nesting() as level, torch.enable_grad():
            x = _create_differentiable(_wrap_all_tensors(theta, level), level)
            loss, more = function(x)
            slope = _slope(loss, x, again)
            found: tuple[Tensor, Any] = _undo_create_differentiable((slope, more), level)
            return found

    return gradient


def _slope(loss: Tensor, x: Tensor, again: bool) -> Tensor:
    """Zero where the loss does not depend on ``x``; ``again``: it will be differentiated."""
    found = None
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, x, create_graph=again, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


@contextmanager
def replaying() -> Iterator[None]:
    """Where a captured step is replayed: nothing is recorded, and yet kernels keep what their
    backward passes read. oneDNN's recurrent layers do so only where gradients are on."""
    with torch.inference_mode(), torch.enable_grad():
        yield
