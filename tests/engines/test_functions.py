"""Functions of whole rounds: recorded once for each shape and moment."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from shoal.core.tree import Tree
from shoal.engines.client_round import WholeData
from shoal.engines.compiler import graph
from shoal.engines.compiler.cache import Functions
from shoal.engines.compiler.compile import record
from shoal.methods.view import Clock


def clock(epoch: int = 0) -> Clock:
    return Clock(0, 0, 0, epoch, 3)


def test_what_does_nothing_in_one_epoch_may_do_something_in_another() -> None:
    functions, state = Functions(Lock()), torch.arange(3.0)

    def later(epoch: int) -> bool:
        now = clock(epoch)

        def moved(x: Tensor, local: WholeData) -> Tree:
            return (x + now.value("epoch"),) if now.value("epoch") else (x,), torch.zeros(3) > 0

        (found,), _ = functions.run("end", moved, (state, WholeData()), now)
        return not torch.equal(found, state)

    assert [later(epoch) for epoch in (0, 1, 0, 2)] == [False, True, False, True]


def test_many_operators_are_one_call_with_the_same_bits() -> None:
    def function(x: Tensor, unused: Tensor, y: Tensor) -> list[Tensor]:
        mean = (x @ y).softmax(-1).cumsum(0).exp().sub(0.5).clamp(min=0.1).sum(1, keepdim=True)
        return [mean.expand(4, 4), x, torch.where(x > 0, x, mean[:, :1].sqrt()), torch.ones(2)]

    tensors = [torch.randn(4, 4) for _ in range(3)]
    found = record(function, tensors)
    assert bool(found.notes) != graph.TORCHSCRIPT  # a script that is not to be had is a note
    for got, want in zip(found(*tensors), function(*tensors), strict=True):
        assert torch.equal(got, want)
    assert found(*tensors)[1] is tensors[0]
