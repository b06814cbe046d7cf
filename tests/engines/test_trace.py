"""A replayed step does what the step itself does, and touches nothing but the carry."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from traced import (
    CLASSES,
    CLIENTS,
    DTYPES,
    ROWS,
    batches,
    check,
    gradient,
    mlp,
    rate,
    stacked,
)

from shoal.core.machine import keep_freed_memory
from shoal.core.task import ModuleTask, QuadraticTask, cross_entropy_rows, mean_loss
from shoal.core.types import Batch
from shoal.engines.compiler.capture import Untraceable
from shoal.engines.compiler.compile import compile_step, record


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_plain_descent_adds_every_block_in_place(dtype: torch.dtype, weighted: bool) -> None:
    task = mlp(dtype)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] - fixed[0] * g(carry[0], *batch)]

    replay = check(step, stacked(task), [rate(dtype)], batches(dtype, weighted))
    assert "cat(" not in replay.source and "copy_" not in replay.source
    assert "log_softmax" not in replay.source


@pytest.mark.parametrize("dtype", DTYPES)
def test_momentum_and_weight_decay(dtype: torch.dtype) -> None:
    task = mlp(dtype)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        theta, buffer = carry
        buffer = 0.9 * buffer + (g(theta, *batch) + 1e-2 * theta)
        return [theta - fixed[0] * buffer, buffer]

    replay = check(step, stacked(task, 1), [rate(dtype)], batches(dtype))
    assert "copy_" not in replay.source


@pytest.mark.parametrize("dtype", DTYPES)
def test_prox_and_control_variates(dtype: torch.dtype) -> None:
    task = mlp(dtype)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        theta, total = carry
        own, received, shift = g(theta, *batch), fixed[1], fixed[2]
        pulled = own + 0.3 * (theta - received) - shift
        return [theta - fixed[0] * pulled, total + own]

    fixed = [rate(dtype), task.initial(1).theta, stacked(task)[0]]
    check(step, stacked(task, 1), fixed, batches(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_by_the_norm_of_each_client(dtype: torch.dtype) -> None:
    task = mlp(dtype)
    one = gradient(task)

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        def client(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
            g = one(theta, x, y)
            clipped = g * (0.1 / (g.norm() + 1e-9)).clamp(max=1.0)
            new: Tensor = theta - fixed[0] * clipped
            return new

        return [vmap(client)(carry[0], *batch)]

    check(step, stacked(task), [rate(dtype)], batches(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_double_gradient_and_scalars_in_the_carry(dtype: torch.dtype) -> None:
    task = mlp(dtype)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        theta, norms, count, rates = carry
        first = g(theta, *batch)
        norm = first.norm(dim=-1)
        second = g(theta + 0.05 * first / (norm[:, None] + 1e-12), *batch)
        return [theta - fixed[0] * second, norms + norm, count + 1, rates + fixed[0]]

    scalars = [torch.zeros(CLIENTS, dtype=dtype) for _ in range(3)]
    scalars[1] = scalars[1].long()
    check(step, stacked(task) + scalars, [rate(dtype)], batches(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rate_for_each_client(dtype: torch.dtype) -> None:
    task = mlp(dtype)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] - fixed[0][:, None] * g(carry[0], *batch)]

    check(step, stacked(task), [torch.rand(CLIENTS, dtype=dtype)], batches(dtype), rate=None)


def test_entries_that_trade_places() -> None:
    """Old values are read after new ones are known: nothing may be overwritten too early."""
    task = mlp(torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        a, b, c, d = carry
        new = a - fixed[0] * g(a, *batch)
        return [new, a, b + a - c, d + (new - a) * c]

    check(step, stacked(task, 3), [rate(torch.float64)], batches(torch.float64))


def _term(kind: int, theta: Tensor, g: Tensor, state: list[Tensor], fixed: list[Tensor]) -> Tensor:
    return (
        g,
        g + 0.1 * theta,
        g + 0.2 * (theta - fixed[1]),
        g - fixed[2],
        g * (1 / (1 + g.norm(dim=-1, keepdim=True))),
        0.5 * g + 0.5 * state[0],
        torch.where(fixed[2] > 0, g, 0.1 * g),
        g.clamp(-0.01, 0.01) + state[1],
        -g / (g.square() + 1.0).sqrt(),
    )[kind]


@pytest.mark.parametrize("seed", range(25))
def test_random_compositions(seed: int) -> None:
    draw = random.Random(seed)
    kinds = [draw.randrange(9) for _ in range(draw.randrange(1, 5))]
    ends = [draw.randrange(6) for _ in range(2)]
    task = mlp(torch.float64)
    gradients = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        theta, *state = carry
        direction = raw = gradients(theta, *batch)
        for kind in kinds:
            direction = _term(kind, theta, direction, state, fixed)
        new = theta - fixed[0] * direction
        choices = (raw, state[0] * 0.9 + direction, new - theta, state[1] + state[0], theta, new)
        return [new, *(choices[end] for end in ends)]

    torch.manual_seed(seed)
    fixed = [rate(torch.float64), task.initial(1).theta, stacked(task)[0]]
    check(step, stacked(task, 2), fixed, batches(torch.float64, weighted=seed % 2 == 0))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, padding=2)
        self.second = nn.Conv2d(8, 4, 3, padding=1)
        self.last = nn.Linear(4 * 5 * 5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.first(x)), 2)
        result: Tensor = self.last(torch.relu(self.second(x)).flatten(1))
        return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("momentum", [False, True])
def test_one_client_with_convolutions(dtype: torch.dtype, momentum: bool) -> None:
    task = ModuleTask(Small, dtype=dtype)
    g = gradient(task)

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        if not momentum:
            return [carry[0] - fixed[0] * g(carry[0], *batch)]
        buffer = 0.9 * carry[1] + g(carry[0], *batch)
        return [carry[0] - fixed[0] * buffer, buffer]

    torch.manual_seed(0)
    theta = task.initial(0).theta
    carry = [theta, torch.zeros_like(theta)] if momentum else [theta]
    rounds = [
        [torch.randn(ROWS, 1, 10, 10, dtype=dtype), torch.randint(0, CLASSES, (ROWS,))]
        for _ in range(4)
    ]
    check(step, carry, [rate(dtype)], rounds)


class Mixed(nn.Module):
    """Layers whose backward passes look nothing like a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.inner = nn.Linear(8, 8)
        self.norms = nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.GroupNorm(2, 8), nn.Tanh())
        self.last = nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.norms(self.inner(self.table(x).mean(-2))))
        return result


@pytest.mark.parametrize("build", [Small, Mixed])
def test_stacked_clients_of_other_networks(build: type[nn.Module]) -> None:
    task = ModuleTask(build, dtype=torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] - fixed[0] * g(carry[0], *batch)]

    torch.manual_seed(0)
    rounds = [
        [
            torch.randn(CLIENTS, ROWS, 1, 10, 10).double()
            if build is Small
            else torch.randint(0, 11, (CLIENTS, ROWS, 4)),
            torch.randint(0, CLASSES, (CLIENTS, ROWS)),
        ]
        for _ in range(3)
    ]
    check(step, stacked(task), [rate(torch.float64)], rounds)


def test_masks_from_outside_and_a_loss_in_the_carry() -> None:
    task = mlp(torch.float64)
    chosen = task.layout.mask(["0."])

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(x, y)
        mean = mean_loss(task, task.forward(theta, batch, theta[:0], True), batch)
        return mean, mean

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        g, value = vmap(grad(loss, has_aux=True))(carry[0], *batch)
        return [torch.where(chosen, carry[0] - fixed[0] * g, carry[0]), carry[1] + value]

    carry = [stacked(task)[0], torch.zeros(CLIENTS, dtype=torch.float64)]
    check(step, carry, [rate(torch.float64)], batches(torch.float64))


def test_quadratics() -> None:
    task = QuadraticTask((1.0, -2.0, 0.5), sizes=(("a", 1), ("b", 2)))
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] - fixed[0] * g(carry[0], *batch)]

    torch.manual_seed(0)
    rounds = [[torch.rand(CLIENTS, 1, 3).double(), torch.rand(CLIENTS, 1, 3).double()]] * 3
    check(step, stacked(task), [rate(torch.float64)], rounds)


def test_the_rate_comes_with_the_call() -> None:
    task = mlp(torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] - fixed[0] * g(carry[0], *batch), carry[1] + fixed[0].square()]

    carry = [stacked(task)[0], torch.zeros(CLIENTS, dtype=torch.float64)]
    batch = batches(torch.float64)[0]
    replay = compile_step(step, carry, [rate(torch.float64)], batch, rate=0)
    want = step(carry, [torch.tensor(0.5, dtype=torch.float64)], batch)
    with torch.inference_mode():
        replay(carry, [rate(torch.float64)], batch, 0.5)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(want, carry, strict=True))


def test_inference_tensors_and_threads() -> None:
    task = mlp(torch.float32)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        buffer = 0.9 * carry[1] + g(carry[0], *batch)
        size = buffer.norm(dim=-1, keepdim=True)
        return [carry[0] - fixed[0] * buffer / (1 + size), buffer]

    rounds = batches(torch.float32) * 25
    with torch.inference_mode():
        start = [stacked(task, 1) for _ in range(4)]
        fixed = [rate(torch.float32)]
        replay = compile_step(step, start[0], fixed, rounds[0], rate=0)

    def train(carry: list[Tensor]) -> None:
        with torch.inference_mode():
            for batch in rounds:
                replay(carry, fixed, batch, 0.125)

    alone = [[t.clone() for t in carry] for carry in start]
    for carry in alone:
        train(carry)
    threads = [threading.Thread(target=train, args=(carry,)) for carry in start]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = zip(sum(alone, []), sum(start, []), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_steps_with_operations_in_place_are_made_pure() -> None:
    task = mlp(torch.float64)
    g = vmap(gradient(task))

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        buffer = carry[1].clone()
        buffer.mul_(0.9).add_(g(carry[0], *batch))
        return [carry[0] - fixed[0] * buffer, buffer]

    check(step, stacked(task, 1), [rate(torch.float64)], batches(torch.float64))


def test_data_dependent_steps_are_refused_in_one_sentence() -> None:
    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        return [carry[0] * 2] if float(batch[0].sum()) > 0 else [carry[0]]

    with pytest.raises(Untraceable) as caught:
        compile_step(step, [torch.ones(3)], [], [torch.ones(2)], rate=None)
    assert "\n" not in str(caught.value)


def test_results_unlike_the_carry_are_refused() -> None:
    with pytest.raises(Untraceable, match="shaped like the carry"):
        compile_step(lambda c, f, b: [c[0].sum()], [torch.ones(3)], [], [], rate=None)


def test_other_shapes_are_refused() -> None:
    replay = compile_step(lambda c, f, b: [c[0] + b[0]], [torch.ones(3)], [], [torch.ones(3)],
                          rate=None)  # fmt: skip
    with pytest.raises(ValueError, match="other shapes"):
        replay.bind([torch.ones(4)], [])


def test_memory_setting_never_fails() -> None:
    assert keep_freed_memory() in (True, False)


def test_losses_over_few_classes_are_recorded_with_the_classes_first() -> None:
    logits, labels = torch.randn(3, 40, 10, dtype=torch.float64), torch.randint(0, 10, (3, 40))

    def losses(logits: Tensor, labels: Tensor) -> list[Tensor]:
        return [cross_entropy_rows(logits, labels)]

    replay = record(losses, [logits, labels])
    assert torch.allclose(replay(logits, labels)[0], losses(logits, labels)[0], atol=1e-14)
