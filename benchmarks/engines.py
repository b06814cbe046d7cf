"""``make bench-engines``: a round on every engine, and whether ``engine: auto`` takes the best.

Engines play the same rounds in turn; the ratio is the median over turns of the chosen engine's time
to the fastest engine's, where the fastest is the one with the lowest median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import torch
from shoal.engines.auto import Choice

from benchmarks.bare import WORKLOADS, BareLoop
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.config.engine import make_engine, tried_engine
from shoal.cores import cores

NAMES = ("processes", "vectorized", "loop")  # what forks first, before others have threads
ROUNDS = {"W1": 8, "W1b": 6, "W2": 20, "W3": 1, "W5": 2}  # of one turn
LIMIT = 1.10


def chosen(workload: str) -> Choice:
    """What ``engine: auto`` comes to, with nothing remembered from before."""
    work = WORKLOADS[workload]
    x, y = work.data()
    start = BareLoop(work).model
    run = ShoalRounds(work, catalog.fedavg(), make_engine("loop"), x, y, start)
    with tempfile.TemporaryDirectory() as empty:
        os.environ["XDG_CACHE_HOME"] = empty
        return tried_engine(run.settings, run.federation.models[0], "cpu")


def measure(workload: str, turns: int) -> dict[str, list[float]]:
    """Seconds a round of every engine, turn by turn."""
    work, count = WORKLOADS[workload], ROUNDS[workload]
    x, y = work.data()
    start = BareLoop(work).model
    players: dict[str, ShoalRounds] = {}
    for name in NAMES:
        players[name] = ShoalRounds(work, catalog.fedavg(), make_engine(name), x, y, start)
        for r in range(2):  # forks, traces; a worker may get nothing in the first
            players[name].round(r)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for turn in range(turns):
        for name, player in players.items():
            torch.set_num_threads(cores() if name == "loop" else 1)
            begin = time.perf_counter()
            for r in range(count):
                player.round(2 + turn * count + r)
            seconds[name].append((time.perf_counter() - begin) / count)
    for player in players.values():
        player.engine.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3", "W5"])
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    lines = []
    for workload in asked.workloads:
        auto = chosen(workload)
        found = measure(workload, asked.turns)
        median = {name: statistics.median(values) for name, values in found.items()}
        best = min(median, key=lambda name: median[name])
        pairs = zip(found[auto.name], found[best], strict=True)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        shown = "  ".join(f"{name} {1e3 * s:.2f} ms" for name, s in median.items())
        print(f"{workload:3} {shown}  auto: {auto.name} ({auto.reason})", flush=True)
        verdict = "" if ratio <= LIMIT else f"  over {LIMIT}"
        lines.append(f"{workload} auto/best {ratio:.3f}{verdict}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
