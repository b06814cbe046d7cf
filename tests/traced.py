"""Small tasks and batches for traced steps, and the check that a replay does what its step does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad

from shoal.core.task import ModuleTask, Task, mean_loss
from shoal.core.types import Batch
from shoal.engines.compiler.compile import Replay, compile_step

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]
CLIENTS, ROWS, WIDTH, CLASSES = 4, 6, 7, 5
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DTYPES = [torch.float64, torch.float32]


def mlp(dtype: torch.dtype) -> ModuleTask:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES))

    return ModuleTask(build, dtype=dtype)


def gradient(task: Task) -> Callable[..., Tensor]:
    """Gradient of the mean loss of one client."""

    def loss(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        batch = Batch(x, y, weight)
        stats = torch.zeros(0, dtype=theta.dtype)
        return mean_loss(task, task.forward(theta, batch, stats, True), batch)

    return grad(loss)


def data(dtype: torch.dtype, weighted: bool = False) -> list[Tensor]:
    x = torch.randn(CLIENTS, ROWS, WIDTH, dtype=dtype)
    y = torch.randint(0, CLASSES, (CLIENTS, ROWS))
    return [x, y, torch.rand(CLIENTS, ROWS, dtype=dtype)] if weighted else [x, y]


def stacked(task: Task, extra: int = 0) -> list[Tensor]:
    theta = task.initial(0).theta.expand(CLIENTS, -1).clone()
    theta += 0.1 * torch.randn_like(theta)
    return [theta, *(torch.randn_like(theta) for _ in range(extra))]


def check(
    step: Step, carry: list[Tensor], fixed: list[Tensor], batches: list[list[Tensor]],
    rate: int | None = 0, rewritten: bool = True,
) -> Replay:  # fmt: skip
    replay = compile_step(step, carry, fixed, batches[0], rate=rate)
    assert replay.rewritten == rewritten, replay.source
    expected, own, bound = (
        [t.clone() for t in carry],
        [t.clone() for t in carry],
        [t.clone() for t in carry],
    )
    places = [t.data_ptr() for t in own]
    inputs = [*fixed, *(t for batch in batches for t in batch)]
    before = [t.clone() for t in inputs]
    number = 0.0 if rate is None else float(fixed[rate])
    with torch.inference_mode():
        run = replay.bind(bound, fixed)
        for batch in batches:
            replay(own, fixed, batch, number)
            run(batch, number)
    for batch in batches:
        expected = [t.detach() for t in step(expected, fixed, batch)]
    for want, got, again in zip(expected, own, bound, strict=True):
        assert want.dtype == got.dtype
        scale = TOLERANCE[want.dtype] * want.norm() if want.is_floating_point() else 0.5
        assert (want - got).double().norm() <= scale
        assert torch.equal(got, again)
    assert [t.data_ptr() for t in own] == places
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    return replay


def batches(dtype: torch.dtype, weighted: bool = False) -> list[list[Tensor]]:
    torch.manual_seed(3)
    return [data(dtype, weighted) for _ in range(4)]


def rate(dtype: torch.dtype) -> Tensor:
    return torch.tensor(0.125, dtype=dtype)
