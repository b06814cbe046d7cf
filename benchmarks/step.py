"""One traced step for a chunk of clients against the bare loop's steps for the same clients.

    python benchmarks/step.py W1b --chunk 10 --method sgd

The contestants take turns, on one thread; figures are medians (and minima) over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from bare import RATE, WORKLOADS, BareLoop, Workload
from torch import Tensor
from torch.func import grad, vmap

from shoal.core.machine import keep_freed_memory
from shoal.core.task import ModuleTask, mean_loss
from shoal.core.types import Batch
from shoal.engines.compiler.compile import compile_step

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]
METHODS = ("sgd", "momentum", "prox", "variates", "clip")


def step_of(task: ModuleTask, method: str, chunk: int) -> Step:
    """The pure step function of a method; one client is not stacked."""

    def loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        batch = Batch(x, y)
        return mean_loss(task, task.forward(theta, batch, torch.zeros(0), True), batch)

    gradient = vmap(grad(loss)) if chunk else grad(loss)

    def step(carry: list[Tensor], fixed: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
        (theta, state), (rate, received, shift) = carry, fixed
        g = gradient(theta, *batch)
        if method == "prox":
            g = g + 0.1 * (theta - received)
        elif method == "variates":
            g = g + shift
        elif method == "clip":
            g = g * (1 / (g.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1.0)
        elif method == "momentum":
            state = g = 0.9 * state + g
        return [theta - rate * g, state]

    return step


def traced(work: Workload, method: str, chunk: int, show: bool) -> Callable[[], None]:
    """A call that trains ``max(chunk, 1)`` clients for one epoch; ``chunk`` 0 is one, unstacked."""
    task = ModuleTask(work.build)
    x, y = work.data()
    received = task.initial(1).theta
    theta = received.expand(chunk, -1).clone() if chunk else received.clone()
    carry = [theta, torch.zeros_like(theta)]
    fixed = [torch.tensor(RATE), received, 1e-3 * torch.randn_like(theta)]
    rows = slice(0, chunk) if chunk else 0
    batches = [[x[rows, i:j], y[rows, i:j]] if chunk else [x[0, i:j], y[0, i:j]]
               for i, j in work.cuts() if j - i == work.batch]  # fmt: skip
    with torch.inference_mode():
        start = time.perf_counter()
        replay = compile_step(step_of(task, method, chunk), carry, fixed, batches[0], rate=0)
    print(f"compiled in {time.perf_counter() - start:.2f} s, rewritten: {replay.rewritten}")
    if show:
        print(replay.source)

    def epoch() -> None:
        with torch.inference_mode():
            theta.copy_(received)
            run = replay.bind(carry, fixed)
            for batch in batches:
                run(batch, RATE)

    return epoch


def bare(work: Workload, clients: int, channels_last: bool) -> Callable[[], None]:
    loop = BareLoop(work, channels_last)
    x, y = work.data()
    cuts = [(i, j) for i, j in work.cuts() if j - i == work.batch]

    def epoch() -> None:
        for client in range(clients):
            for parameter, received in zip(loop.stored, loop.model, strict=True):
                parameter.copy_(received)
            for i, j in cuts:
                loop.local_step(x[client, i:j], y[client, i:j])

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("--chunk", type=int, help="clients at once; 0: one client, not stacked")
    parser.add_argument("--method", choices=METHODS, default="sgd")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--show", action="store_true", help="print the generated code")
    parser.add_argument("--default-malloc", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.default_malloc:
        keep_freed_memory()
    work = WORKLOADS[asked.workload]
    natural = 0 if work.convolutional or work.chunk == 1 else work.chunk
    chunk = natural if asked.chunk is None else asked.chunk
    contestants = {
        "bare": bare(work, max(chunk, 1), False),
        "traced": traced(work, asked.method, chunk, asked.show),
    }
    if work.convolutional:
        contestants["bare, channels last"] = bare(work, 1, True)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(asked.turns + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    kept = {name: times[1:] for name, times in seconds.items()}
    median = {name: statistics.median(times) for name, times in kept.items()}
    for name, times in kept.items():
        ratio, best = median[name] / median["bare"], min(times) / min(kept["bare"])
        print(f"{name:20s} {median[name] * 1e3:9.3f} ms  ratio {ratio:.3f} (of minima {best:.3f})")


if __name__ == "__main__":
    main()
