"""Functions of whole rounds: recorded once, left out where the recording does nothing."""

from __future__ import annotations

from threading import Lock

import pytest
import torch
from torch import Tensor

from shoal.engines.client_round import Local
from shoal.engines.compiler.cache import Functions
from shoal.engines.compiler.capture import recorded
from shoal.engines.compiler.emit_torchscript import _by_interpreter, as_call
from shoal.tree import Tree
from shoal.view import Clock


def clock(epoch: int = 0) -> Clock:
    return Clock(0, 0, 0, epoch, 3)


def test_what_gives_back_its_state_and_never_stops_is_left_out() -> None:
    functions, state, calls = Functions(Lock()), torch.arange(3.0), []

    def nothing(x: Tensor, local: Local) -> Tree:
        calls.append(1)
        return (x,), torch.zeros(3, dtype=torch.bool)

    for _ in range(3):
        found = functions.moved("end", nothing, (state, Local()), clock(), (state,))
        assert found is None
    assert len(calls) == 1


@pytest.mark.parametrize("case", ["moves", "stops", "may stop", "flag of its own"])
def test_what_changes_or_stops_is_not(case: str) -> None:
    functions, flag = Functions(Lock()), torch.zeros(3, dtype=torch.bool)

    def something(x: Tensor, held: Tensor, local: Local) -> Tree:
        return {
            "moves": lambda: ((x + 1,), torch.zeros(3, dtype=torch.bool)),
            "stops": lambda: ((x,), torch.ones(3, dtype=torch.bool)),
            "may stop": lambda: ((x,), x > 10),
            "flag of its own": lambda: ((x,), held),
        }[case]()

    for number in range(3):
        state = torch.arange(3.0) + number
        found = functions.moved("end", something, (state, flag, Local()), clock(), (state,))
        assert found is not None
        expected = something(state, flag, Local())
        assert torch.equal(found[0][0], expected[0][0]) and torch.equal(found[1], expected[1])


def test_what_does_nothing_in_one_epoch_may_do_something_in_another() -> None:
    functions, state = Functions(Lock()), torch.arange(3.0)

    def later(epoch: int) -> bool:
        now = clock(epoch)

        def moved(x: Tensor, local: Local) -> Tree:
            return (x + now.value("epoch"),) if now.value("epoch") else (x,), torch.zeros(3) > 0

        return functions.moved("end", moved, (state, Local()), now, (state,)) is not None

    assert [later(epoch) for epoch in (0, 1, 0, 2)] == [False, True, False, True]


def test_many_operators_are_one_call_with_the_same_bits() -> None:
    def function(x: Tensor, unused: Tensor, y: Tensor) -> list[Tensor]:
        mean = (x @ y).softmax(-1).cumsum(0).exp().sub(0.5).clamp(min=0.1).sum(1, keepdim=True)
        return [mean.expand(4, 4), x, torch.where(x > 0, x, mean[:, :1].sqrt()), torch.ones(2)]

    tensors = [torch.randn(4, 4) for _ in range(3)]
    recording = recorded(function, tensors)
    assert _by_interpreter(recording.copy()) is not None
    for got, want in zip(as_call(recording)(*tensors), function(*tensors), strict=True):
        assert torch.equal(got, want)
    assert as_call(recorded(function, tensors))(*tensors)[1] is tensors[0]
