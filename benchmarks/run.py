"""``make bench``: shoal's stacked engine against the bare loop, interleaved, same work.

One line a workload at the end: its name and, last, the ratio of medians (smaller is better).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.agreement import check
from benchmarks.bare import WORKLOADS, BareLoop, cohort_of
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.stacked.engine import Stacked

ROUNDS = {"W1": 8, "W1b": 6, "W2": 20, "W3": 1, "W5": 2}  # timed together, so that a timer is fine


def timed(threads: int, work: Callable[[], None]) -> float:
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(name: str, repeats: int) -> dict[str, list[float]]:
    """Seconds a round of every contestant, interleaved; the models are compared first."""
    work = WORKLOADS[name]
    torch.set_num_threads(1)
    x, y = work.data()
    bare = BareLoop(work)
    shoal = ShoalRounds(work, catalog.fedavg(), Stacked(), x, y, bare.model)
    bare.round(x, y, sorted(cohort_of(work, 0)))
    shoal.round(0)
    check(name, work, x, y, shoal.named())
    count, seconds = ROUNDS[name], dict[str, list[float]](bare_1=[], bare_2=[], stacked=[])
    number = 1
    for _ in range(repeats):
        rounds = range(number, number + count)
        number += count

        def by_hand(rounds: range = rounds) -> None:
            for r in rounds:
                bare.round(x, y, cohort_of(work, r))

        def by_shoal(rounds: range = rounds) -> None:
            for r in rounds:
                shoal.round(r)

        seconds["bare_1"].append(timed(1, by_hand) / count)
        seconds["bare_2"].append(timed(2, by_hand) / count)
        seconds["stacked"].append(timed(1, by_shoal) / count)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    lines = []
    for name in arguments.workloads:
        seconds = measure(name, arguments.repeats)
        median = {key: statistics.median(values) for key, values in seconds.items()}
        bare = min(median["bare_1"], median["bare_2"])
        shown = "  ".join(f"{k} {1e3 * v:8.2f} ms" for k, v in median.items())
        print(f"{name:4} {shown}", flush=True)
        lines.append(f"{name} stacked/bare {median['stacked'] / bare:.3f}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
