"""``make bench-methods``: what a method costs a round beside FedAvg, same engine, same work.

Methods whose mathematics adds only vector algebra should cost little more than FedAvg; FedSAM takes
two gradients a step. FedAgg's probe and DynamicInit's extra rounds are counted apart.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.bare import WORKLOADS, BareLoop
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.vectorized import Vectorized
from shoal.method import Method

ALGEBRA = (
    "fedprox", "fedinit", "special", "flash", "fedacg", "feddyn", "scaffold", "fedcm",
)  # fmt: skip
LIMITS = {"W3": 1.15, "W2": 1.5}
ROUNDS = {"W3": 1, "W2": 20}


def contestants() -> dict[str, Method]:
    """The methods of the bar, as far as the catalog has them; FLASH without early stopping."""
    known = {name: catalog.METHODS[name] for name in ALGEBRA if name in catalog.METHODS}
    methods = {name: build() for name, build in known.items() if name != "flash"}
    methods["flash (server)"] = catalog.flash(gamma=None)
    if "fedsam" in catalog.METHODS:
        methods["fedsam"] = catalog.METHODS["fedsam"]()
    return methods


def measure(workload: str, repeats: int) -> dict[str, float]:
    """Median seconds a round of every method, interleaved."""
    work = WORKLOADS[workload]
    torch.set_num_threads(1)
    x, y = work.data()
    start = BareLoop(work).model
    entries = {"fedavg": catalog.fedavg(), **contestants()}
    players = {
        name: ShoalRounds(work, method, Vectorized(), x, y, start, rounds=20 * (repeats + 2))
        for name, method in entries.items()
    }
    count = ROUNDS[workload]
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for player in players.values():
        player.round(0)
    for repeat in range(repeats):
        for name, player in players.items():
            begin = time.perf_counter()
            for r in range(count):
                player.round(1 + repeat * count + r)
            seconds[name].append((time.perf_counter() - begin) / count)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(LIMITS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for workload in arguments.workloads:
        found = measure(workload, arguments.repeats)
        print(f"{workload}: fedavg {1e3 * found['fedavg']:.2f} ms a round", flush=True)
        for name, value in found.items():
            limit = 2.2 if name == "fedsam" else LIMITS[workload]
            ratio = value / found["fedavg"]
            verdict = "" if ratio <= limit else "  over"
            print(f"{workload} {name:16} /fedavg {ratio:.3f}  (bar {limit}){verdict}", flush=True)


if __name__ == "__main__":
    main()
