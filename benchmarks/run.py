"""``make bench``: shoal's vectorized engine against the bare loop, interleaved, same work.

One line a workload at the end: its name and, last, the ratio of medians (smaller is better).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

import torch
from shoal.engines.together import Table

from benchmarks.agreement import check
from benchmarks.bare import WORKLOADS, BareLoop, cohort_of
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.vectorized import Vectorized

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
    shoal = ShoalRounds(work, catalog.fedavg(), Vectorized(), x, y, bare.model)
    bare.round(x, y, sorted(cohort_of(work, 0)))
    shoal.round(0)
    check(name, work, x, y, shoal.named())
    count, seconds = ROUNDS[name], dict[str, list[float]](bare_1=[], bare_2=[], vectorized=[])
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
        seconds["vectorized"].append(timed(1, by_shoal) / count)
    return seconds


def measure_seeds(name: str, repeats: int, seeds: int = 3) -> tuple[float, float]:
    """Median seconds of processor time a round: one run, and several stepping together."""
    work = WORKLOADS[name]
    x, y = work.data()
    start = BareLoop(work).model
    alone = ShoalRounds(work, catalog.fedavg(), Vectorized(threads=1), x, y, start)
    table = Table(Vectorized(threads=1), seeds)
    several = [
        ShoalRounds(work, catalog.fedavg(), table.seat(k), x, y, start, program=alone.program)
        for k in range(seeds)
    ]
    number, found = 0, dict[str, list[float]](one=[], several=[])
    for repeat in range(repeats + 1):
        rounds = range(number, number + ROUNDS[name])
        number += ROUNDS[name]
        begin = time.process_time()
        for r in rounds:
            alone.round(r)
        middle = time.process_time()
        in_lock_step(table, [partial(_play, run, rounds) for run in several])
        if repeat:  # the first traces
            found["one"].append((middle - begin) / len(rounds))
            found["several"].append((time.process_time() - middle) / len(rounds))
    return statistics.median(found["one"]), statistics.median(found["several"])


def _play(run: ShoalRounds, rounds: range) -> None:
    for r in rounds:
        run.round(r)


def in_lock_step(table: Table, actions: list[Callable[[], None]]) -> None:
    """Do all actions at one table, each with the baton while it runs."""

    def seated(action: Callable[[], None]) -> None:
        with table.baton:
            action()

    threads = [Thread(target=seated, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", action="store_true", help="three seeds stacked against one")
    arguments = parser.parse_args()
    if arguments.seeds:
        for name in arguments.workloads:
            one, three = measure_seeds(name, arguments.repeats)
            print(f"{name} one seed {1e3 * one:.2f} ms  three/one {three / one:.2f}", flush=True)
        return
    lines = []
    for name in arguments.workloads:
        seconds = measure(name, arguments.repeats)
        median = {key: statistics.median(values) for key, values in seconds.items()}
        bare = min(median["bare_1"], median["bare_2"])
        shown = "  ".join(f"{k} {1e3 * v:8.2f} ms" for k, v in median.items())
        print(f"{name:4} {shown}", flush=True)
        lines.append(f"{name} vectorized/bare {median['vectorized'] / bare:.3f}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
