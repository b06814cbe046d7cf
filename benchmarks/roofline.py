"""How near to the machine's arithmetic a round is, and what three seeds at once can save.

    python -m benchmarks.roofline W1 W1b W5

The floating-point operations of a round's matrix products, the rate at which one thread gets
through them, and the rate of one large matrix product on the same core. Where the first is near the
second, stacking several seeds cannot make their arithmetic cheaper.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.bare import WORKLOADS, BareLoop, Workload
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.stacked.engine import Stacked

SIZE = 2048  # of the large product
REPEATS = 7


def operations(work: Workload) -> int:
    """Of the matrix products of one round: forward, weights' gradients, inner layers' gradients."""
    layers = list(zip(work.sizes, work.sizes[1:], strict=False))
    forward = sum(a * b for a, b in layers)
    inner = sum(a * b for a, b in layers[1:])
    return 2 * work.cohort * work.rows * (2 * forward + inner)


def large_product() -> float:
    """Operations a second of one large float32 product on one thread."""
    x = torch.randn(SIZE, SIZE)
    found = []
    for _ in range(REPEATS):
        begin = time.process_time()
        torch.mm(x, x)
        found.append(2 * SIZE**3 / (time.process_time() - begin))
    return statistics.median(found)


def round_rate(work: Workload) -> float:
    """Operations a second of whole rounds on one thread."""
    x, y = work.data()
    start = BareLoop(work).model
    run = ShoalRounds(work, catalog.fedavg(), Stacked(threads=1), x, y, start)
    found = []
    for number in range(REPEATS + 2):
        begin = time.process_time()
        run.round(number)
        found.append(operations(work) / (time.process_time() - begin))
    return statistics.median(found[2:])  # the first ones trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    dense = [name for name, work in WORKLOADS.items() if not work.convolutional]
    parser.add_argument("workloads", nargs="*", default=dense)
    torch.set_num_threads(1)
    for name in parser.parse_args().workloads:
        peak, rate = large_product(), round_rate(WORKLOADS[name])
        print(
            f"{name:4} {operations(WORKLOADS[name]) / 1e9:7.3f} GFLOP a round, "
            f"{rate / 1e9:6.1f} GFLOP/s of {peak / 1e9:.1f}: {rate / peak:.2f}; three seeds "
            f"cost at least {3 * rate / peak:.2f} times one",
            flush=True,
        )


if __name__ == "__main__":
    main()
