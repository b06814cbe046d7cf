"""``make bench-memory``: peaks beside the bare loop's, and whether memory grows with the rounds.

Every contestant has a process of its own. Growth is what stays resident more after the last round
than after a fifth of them; the first rounds trace, allocate and fill caches.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.bare import WORKLOADS, BareLoop, cohort_of
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.vectorized import Vectorized

MOST_TIMES, MOST_BEYOND = 1.5, 100.0  # of the bare loop's peak, and MB on top of it
STEADY = 10.0  # MB of growth that allocators explain
ROUNDS = {"W1": 500, "W1b": 500, "W2": 500, "W3": 5, "W5": 100}  # W3's rounds last seconds


def resident() -> float:
    """MB of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """The most MB that this process had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def play(contestant: str, name: str, rounds: int) -> None:
    """Print MB: the peak, and the growth over the last four fifths of the rounds."""
    work = WORKLOADS[name]
    torch.set_num_threads(1)
    x, y = work.data()
    bare = BareLoop(work)
    if contestant == "bare":
        early = 0.0
        for number in range(3):
            bare.round(x, y, cohort_of(work, number))
            early = resident()
    else:
        method = catalog.METHODS[contestant]()
        shoal = ShoalRounds(work, method, Vectorized(), x, y, bare.model, rounds=rounds)
        for number in range(rounds):
            if number == max(rounds // 5, 1):
                early = resident()
            shoal.round(number)
    print(peak(), resident() - early)


def measure(contestant: str, name: str, rounds: int) -> tuple[float, float]:
    """Peak and growth in MB, in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", name]
    command += ["--play", contestant, "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    highest, growth = map(float, done.stdout.split())
    return highest, growth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(ROUNDS))
    parser.add_argument("--methods", default="fedavg,scaffold,fedinit")
    parser.add_argument("--rounds", type=int, help="else so many that the whole takes minutes")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name in asked.workloads:
        rounds = asked.rounds or ROUNDS[name]
        if asked.play:
            play(asked.play, name, rounds)
            continue
        base, _ = measure("bare", name, 3)
        bar = MOST_TIMES * base + MOST_BEYOND
        for method in asked.methods.split(","):
            highest, growth = measure(method, name, rounds)
            over = [" over its bar"] if highest > bar else []
            over += [f" grows by {growth:.0f} MB"] if growth > STEADY else []
            line = f"{name} {method:9} peak {highest:.0f} MB (bare {base:.0f}, bar {bar:.0f}); "
            line += f"{growth:+.1f} MB from round {max(rounds // 5, 1)} to {rounds}"
            print(line + ("  " + ",".join(over) if over else ""), flush=True)


if __name__ == "__main__":
    main()
