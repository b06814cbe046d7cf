"""What runs once a round calls torch's own bindings where they mean the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shoal.engines.compiler.compile import record

Function = Callable[[Tensor, Tensor], list[Tensor]]
FUNCTIONS: dict[str, Function] = {
    "arithmetic": lambda x, y: [1.0 - x * y, torch.maximum(x, 0.5 * y), x / (1 + y.exp())],
    "an alpha": lambda x, y: [torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=2)],
    "axes": lambda x, y: [x.flip(0).cumsum(0).flip(0), x.sum(-1), y.t() @ x, x.mean(), y.sum()],
    "a number first": lambda x, y: [2.0 / (2 + x.square()), torch.where(x > 0, x, y)],
    "together": lambda x, y: [torch.cat([x, y], 1), torch.stack([x, y]).select(1, 0)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_recorded_function_gives_the_bits_of_the_function(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    function = FUNCTIONS[name]
    replay = record(function, [torch.randn(3, 4, dtype=dtype) for _ in range(2)])
    x, y = (torch.randn(3, 4, dtype=dtype) for _ in range(2))
    for want, got in zip(function(x, y), replay(x, y), strict=True):
        assert want.dtype == got.dtype and torch.equal(want, got)
