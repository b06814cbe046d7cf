"""How near W3 comes to the arithmetic rate of a large float32 matrix product on the same cores.

    python -m benchmarks.roofline_w3

Turns alternate: a matrix product in each of as many threads as there are cores, a round of W3, and
the operations of W3's step on one core, each alone. The share is the median over turns of the
round's rate to the product's rate in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bare import WORKLOADS, BareLoop, Workload
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.core.machine import cores, keep_freed_memory
from shoal.engines.stacked.engine import Stacked

SIDE = 2048  # of the matrices
PRODUCTS = 6  # a turn
GOAL = 0.85

# Multiply-adds a sample: (forward, how many products of that size a step takes). The first layer
# needs no gradient of its input.
LAYERS = {
    "c1": (28 * 28 * 32 * 25, 2),
    "c2": (14 * 14 * 64 * 25 * 32, 3),
    "f1": (3136 * 512, 3),
    "f2": (512 * 10, 3),
}


def operations(work: Workload) -> float:
    """Floating-point operations of one round."""
    return 2.0 * work.cohort * work.rows * sum(size * times for size, times in LAYERS.values())


def product_rate(threads: int) -> float:
    """Operations a second of independent matrix products, one thread a core."""
    pairs = [(torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)) for _ in range(threads)]
    outs = [torch.empty(SIDE, SIDE) for _ in range(threads)]

    def multiply(k: int) -> None:
        torch.set_num_threads(1)
        for _ in range(PRODUCTS):
            torch.mm(*pairs[k], out=outs[k])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, range(threads)))  # warm
        begin = time.perf_counter()
        list(pool.map(multiply, range(threads)))
        seconds = time.perf_counter() - begin
    return 2.0 * SIDE**3 * PRODUCTS * threads / seconds


def parts_of_a_step(batch: int = 32) -> dict[str, tuple[Callable[[], object], float]]:
    """The larger operations of W3's step with channels last, and their multiply-adds."""
    last: Callable[..., Tensor] = lambda *s: torch.randn(*s).to(memory_format=torch.channels_last)  # noqa: E731
    x1, w1, g1 = last(batch, 1, 28, 28), last(32, 1, 5, 5), last(batch, 32, 28, 28)
    x2, w2, g2 = last(batch, 32, 14, 14), last(64, 32, 5, 5), last(batch, 64, 14, 14)
    xf, wf, gf = torch.randn(batch, 3136), torch.randn(512, 3136), torch.randn(batch, 512)
    b1, b2 = torch.randn(32), torch.randn(64)
    back = torch.ops.aten.convolution_backward

    def gradient(g: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> object:
        return back(g, x, w, [w.shape[0]], [1, 1], [2, 2], [1, 1], False, [0, 0], 1, mask)

    c1, c2, f1 = (batch * LAYERS[k][0] for k in ("c1", "c2", "f1"))
    return {
        "c1 forward": (lambda: F.conv2d(x1, w1, b1, padding=2), c1),
        "c1 weights": (lambda: gradient(g1, x1, w1, [False, True, True]), c1),
        "c2 forward": (lambda: F.conv2d(x2, w2, b2, padding=2), c2),
        "c2 input": (lambda: gradient(g2, x2, w2, [True, False, False]), c2),
        "c2 weights": (lambda: gradient(g2, x2, w2, [False, True, True]), c2),
        "f1 forward": (lambda: xf @ wf.t(), f1),
        "f1 input": (lambda: gf @ wf, f1),
        "f1 weights, update": (lambda: wf.addmm_(gf.t(), xf, alpha=-1e-9), f1),
        "relu, pool 1": (lambda: F.max_pool2d(F.relu(g1), 2, return_indices=True), 0),
        "relu, pool 2": (lambda: F.max_pool2d(F.relu(g2), 2, return_indices=True), 0),
    }


def timed(action: Callable[[], object], times: int = 20) -> float:
    """The best of ``times`` calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    work = WORKLOADS["W3"]
    x, y = work.data()
    shoal = ShoalRounds(work, catalog.fedavg(), Stacked(), x, y, BareLoop(work).model)
    shoal.round(0)
    shares, rates = [], []
    for turn in range(1, asked.turns + 1):
        rates.append(product_rate(cores()))
        begin = time.perf_counter()
        shoal.round(turn)
        shares.append(operations(work) / (time.perf_counter() - begin) / rates[-1])
    alone = product_rate(1) / 2e9
    with torch.inference_mode():
        print(f"W3 one core: a large matrix product {alone:.0f} G multiply-adds a second")
        for name, (action, size) in parts_of_a_step(work.batch).items():
            seconds = timed(action)
            rate = f"{size / seconds / 1e9 / alone:5.2f} of the product's rate" if size else ""
            print(f"  {name:20} {1e3 * seconds:7.3f} ms  {rate}")
    product = statistics.median(rates) / 1e9
    share = statistics.median(shares)
    print(f"W3 round {operations(work) / 1e9:.0f} GFLOP, matrix product {product:.0f} GFLOP/s")
    print(f"W3 rate/product {share:.3f} ({min(shares):.3f} to {max(shares):.3f}; goal {GOAL})")


if __name__ == "__main__":
    main()
