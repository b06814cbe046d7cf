"""``make bench-memory``: peaks beside the bare loop's, and whether memory grows with the rounds.

Every contestant has a process of its own. Growth is what stays resident more after the last round
than after a fifth of them; the first rounds trace, allocate and fill caches. Beside it stands what
is resident after every fifth, and what clients keep by then: the store's bytes, and those of the
memory behind them, which would be more if a client's row held on to the stack it was cut from.
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
from shoal.core import tree
from shoal.engines.stacked.engine import Stacked
from shoal.rounds.client_memories import ClientStore

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
    """Print MB: the peak, then what is resident and what is kept after every fifth."""
    work = WORKLOADS[name]
    torch.set_num_threads(1)
    x, y = work.data()
    bare = BareLoop(work)
    if contestant == "bare":
        for number in range(3):
            bare.round(x, y, cohort_of(work, number))
        print(peak())
        return
    method = catalog.METHODS[contestant]()
    shoal = ShoalRounds(work, method, Stacked(), x, y, bare.model, rounds=rounds)
    found = []
    for number in range(rounds):
        shoal.round(number)
        if (number + 1) % max(rounds // 5, 1) == 0:
            found.append((resident(), *kept(shoal.federation.store)))
    print(peak(), *(number for after in found for number in after))


def kept(store: ClientStore) -> tuple[float, float]:
    """MB that clients keep, and MB of the memory that holds them."""
    held = {}
    for _, memories in store.items():
        for tensor in tree.leaves(memories):
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return store.nbytes() / 1e6, sum(held.values()) / 1e6


def measure(contestant: str, name: str, rounds: int) -> tuple[float, list[float]]:
    """The peak and what :func:`play` prints behind it, in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", name]
    command += ["--play", contestant, "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    highest, *after = map(float, done.stdout.split())
    return highest, after


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
            highest, after = measure(method, name, rounds)
            there, bytes_kept, held = after[::3], after[1::3], after[2::3]
            growth = there[-1] - there[0]
            over = [" over its bar"] if highest > bar else []
            over += [f" grows by {growth:.0f} MB"] if growth > STEADY else []
            line = f"{name} {method:9} peak {highest:.0f} MB (bare {base:.0f}, bar {bar:.0f}); "
            line += f"{growth:+.1f} MB from round {max(rounds // 5, 1)} to {rounds}"
            print(line + ("  " + ",".join(over) if over else ""), flush=True)
            course = [" ".join(f"{mb:.0f}" for mb in part) for part in (there, bytes_kept, held)]
            print(
                "   after every fifth: resident {}; kept {}, in {} MB".format(*course), flush=True
            )


if __name__ == "__main__":
    main()
