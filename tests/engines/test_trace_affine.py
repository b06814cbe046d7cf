"""Steps of linear models: pulls, rates of single clients, many steps in one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from traced import CLASSES, CLIENTS, DTYPES, WIDTH, Step, batches, check, gradient, mlp, rate

from shoal.core.task import ModuleTask
from shoal.engines.compiler.compile import compile_step
from shoal.engines.compiler.graph import Steps


def linear(dtype: torch.dtype, classes: int = CLASSES, bias: bool = True) -> ModuleTask:
    return ModuleTask(lambda: nn.Linear(WIDTH, classes, bias=bias), dtype=dtype)


def start(task: ModuleTask) -> Tensor:
    torch.manual_seed(1)
    theta = task.initial(0).theta.expand(CLIENTS, -1).clone()
    return theta + 0.1 * torch.randn_like(theta)


def descent(task: ModuleTask) -> Step:
    g = vmap(gradient(task))
    return lambda carry, fixed, batch: [carry[0] - fixed[0] * g(carry[0], *batch), *carry[1:]]


def rated_descent(task: ModuleTask) -> Step:
    """Every client at a rate of its own, which it also sums."""
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        theta, rates, total = carry
        return [theta - rates[:, None] * g(theta, *batch), rates, total + rates]

    return step


@pytest.mark.parametrize("many", [1, 2, 4])  # steps that are gathered at once
def test_steps_in_one_call_have_the_bits_of_steps_one_by_one(many: int) -> None:
    task, torch_batches = linear(torch.float32), batches(torch.float32)
    replay = compile_step(
        descent(task), [start(task)], [rate(torch.float32)], torch_batches[0], rate=0
    )
    x = torch.stack([b[0] for b in torch_batches])
    rows = torch.arange(x.shape[0] * x.shape[1] * x.shape[2]).view(len(x), -1)
    labels = torch.stack([b[1] for b in torch_batches])
    pool = x.flatten(0, 2)
    together, single = [start(task)], [start(task)]
    with torch.inference_mode():
        steps = Steps(pool, rows, [labels], list(x.shape[1:]), many)
        replay.all_steps(together, [rate(torch.float32)], steps, 0.125)
        run = replay.bind(single, [rate(torch.float32)])
        for batch in torch_batches:
            run(batch, 0.125)
    assert torch.equal(together[0], single[0])


def test_rates_that_depend_on_the_gradient_stay_where_they_are() -> None:
    task = mlp(torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        found = g(carry[0], *batch)
        rates = 1 / (1 + found.norm(dim=1))
        return [carry[0] - rates[:, None] * found]

    replay = check(step, [start(task)], [], batches(torch.float64), rate=None)
    assert "assemble" in replay.source


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", [True, False])  # whether all clients started at one model
def test_pulls_that_are_affine_in_theta(dtype: torch.dtype, shared: bool) -> None:
    task = linear(dtype)
    g, theta = vmap(gradient(task)), start(task)
    anchor = task.initial(3).theta if shared else start(task) + 0.5
    dual, variate = torch.randn_like(theta), torch.randn_like(theta)

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        pull = 0.1 * (carry[0] - fixed[1]) - fixed[2] + 2.0 * (fixed[3] - fixed[2])
        return [carry[0] - fixed[0] * (g(carry[0], *batch) + pull)]

    check(step, [theta], [rate(dtype), anchor, dual, variate], batches(dtype))


def test_a_pull_that_is_made_of_the_batch() -> None:
    task = linear(torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        mean = batch[0].mean(dim=(1, 2))[:, None]
        return [carry[0] - fixed[0] * (g(carry[0], *batch) + mean * torch.ones_like(carry[0]))]

    check(step, [start(task)], [rate(torch.float64)], batches(torch.float64))
