"""Three seeds against one, as a user runs them: whole commands, from start to summary.

    python -m benchmarks.seeds

``shoal run`` of a small model (W1's, on samples of its shape) and ``shoal sweep`` of the same with
three seeds, turn by turn: wall-clock time, and processor time, which says more where others use the
machine too. What three seeds share is the start, the data and the traces; their arithmetic they do
not. So the ratio grows with the rounds, and both are printed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.bare import WORKLOADS

CONFIG = """
seed: 0
data: {{path: {folder}/samples.npz, y: y, client: client, test: 0.002}}
model: {{name: mlp, hidden: [200]}}
world: {{name: static, partition: natural, rounds: {rounds}}}
participation: 10
local: {{epochs: 1, batch: 128, lr: 0.05}}
evaluate: {{every: {rounds}}}
method: fedavg
"""
SWEEP = "base: one.yaml\ngrid: {seed: [0, 1, 2]}\n"
GOAL = 1.8


def prepare(folder: Path, rounds: int) -> None:
    work = WORKLOADS["W1"]
    x, y = work.data()
    client = np.repeat(np.arange(work.clients), work.rows)
    np.savez(folder / "samples.npz", x=x.flatten(0, 1), y=y.flatten(), client=client)
    (folder / "one.yaml").write_text(CONFIG.format(folder=folder, rounds=rounds))
    (folder / "three.yaml").write_text(SWEEP)


class Spent(NamedTuple):
    """Seconds of a command."""

    wall: float
    processor: float


def seconds(folder: Path, turn: int, command: str, config: str) -> Spent:
    target = folder / f"{command}-{turn}"
    line = [sys.executable, "-m", "shoal", command, str(folder / config), "-o", str(target)]
    begin, before = time.perf_counter(), _processor()
    subprocess.run(line, check=True, capture_output=True)
    return Spent(time.perf_counter() - begin, _processor() - before)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, nargs="*", default=[20, 200])
    asked = parser.parse_args()
    for rounds in asked.rounds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, rounds)
            pairs = [
                (seconds(folder, t, "run", "one.yaml"), seconds(folder, t, "sweep", "three.yaml"))
                for t in range(asked.turns)
            ]
        ratio = statistics.median(three.wall / one.wall for one, three in pairs)
        work = statistics.median(three.processor / one.processor for one, three in pairs)
        one = statistics.median(one.wall for one, _ in pairs)
        print(
            f"W1, {rounds} rounds: one seed {one:.1f} s, three/one {ratio:.2f} (goal {GOAL}), "
            f"of processor time {work:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
