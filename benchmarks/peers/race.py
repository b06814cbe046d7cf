"""``make bench-peers``: shoal, the bare loop and peers on the same work, turn by turn in one run.

Every contestant runs in processes of its own and plays when it is called, so that a busy moment of
the machine hits all alike. Ratios are taken turn by turn to the faster bare loop of that turn, then
the median. Flower has turns with the bare loops only: its actors never sleep quite.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.bare import RATE, WORKLOADS, BareLoop, cohort_of
from benchmarks.peers.environments import NEEDS, install
from benchmarks.peers.process import Entry, Racer
from benchmarks.peers.work import Work

BARE = (Entry("bare", "torch_bare", "shoal"), Entry("bare 2 threads", "torch_bare_two", "shoal"))
SHOAL = Entry("shoal", "shoal_rounds", "shoal")
PEERS = (
    Entry("deepcopy + DataLoader", "torch_simulator", "shoal"),
    Entry("pfl", "pfl_averaging", "pfl"),
    Entry("pfl 2 processes", "pfl_averaging", "pfl", processes=2),
    Entry("fedjax", "fedjax_averaging", "fedjax"),
    Entry("JAX", "jax_plain", "jax"),
)
FLOWER = Entry("Flower", "flower_simulation", "flower")
ROUNDS = {"W1": 5, "W1b": 4, "W2": 10, "W3": 1, "W5": 2}  # of one turn
APART = 2e-4  # models after the first round; fedjax wraps its last batch, Flower picks its clients


def prepare(name: str, folder: Path) -> None:
    """Write the workload's arrays."""
    load = WORKLOADS[name]
    x, y = load.data()
    weights = tuple(w.numpy() for w in BareLoop(load).model)
    cohorts = np.array([sorted(cohort_of(load, r)) for r in range(2000)])
    Work(name, x.numpy(), y.numpy(), weights, cohorts, load.batch, RATE).save(folder)


def model_of(racer: Racer, folder: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    saved = folder / "model.npy"
    racer.tell(f"model {saved}")
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.load(saved)
    return found


def started(entries: tuple[Entry, ...], folder: Path, log: Path) -> list[Racer]:
    """Those that start; the first one's model is what all others must have after one round."""
    racers: list[Racer] = []
    for entry in entries:
        try:
            racer = Racer.start(entry, folder, log)
        except RuntimeError as error:
            print(f"  {error}; see {log}", flush=True)
            continue
        racers.append(racer)
        if entry is not FLOWER:
            gap = float(np.abs(model_of(racer, folder) - model_of(racers[0], folder)).max())
            if gap > APART:
                print(f"  {entry.name}: its model is {gap:.1g} away after one round", flush=True)
    return racers


def raced(
    entries: tuple[Entry, ...], name: str, turns: int, folder: Path, log: Path
) -> list[Racer]:
    racers = started(entries, folder, log)
    rounds = 1 if FLOWER in entries else ROUNDS[name]  # a round of Flower's lasts long enough
    for turn in range(turns):
        for racer in racers if turn % 2 == 0 else racers[::-1]:
            racer.turn(rounds)
    for racer in racers:
        racer.stop()
    return racers


def ratios(racer: Racer, racers: list[Racer]) -> list[float]:
    """Of every turn, to the faster bare loop in it."""
    bare = [r for r in racers if r.entry in BARE]
    return [
        statistics.median(mine) / min(statistics.median(b.seconds[k]) for b in bare)
        for k, mine in enumerate(racer.seconds)
    ]


def report(name: str, racers: list[Racer]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for racer in racers:
        found = ratios(racer, racers)
        median = statistics.median(found)
        milliseconds = 1e3 * statistics.median([s for turn in racer.seconds for s in turn])
        print(
            f"{name:4} {racer.entry.name:22} {milliseconds:9.2f} ms  ratio {median:7.3f} "
            f"({min(found):.3f} to {max(found):.3f})  first round {racer.first:5.1f} s  "
            f"{racer.memory:6.0f} MiB",
            flush=True,
        )
        rows.append(
            {"workload": name, "contestant": racer.entry.name, "milliseconds": milliseconds}
            | {"ratio": median, "lowest": min(found), "highest": max(found)}
            | {"first_round_seconds": racer.first, "memory_mib": racer.memory}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], help="contestants to leave out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    peers = tuple(e for e in (*PEERS, FLOWER) if e.name not in asked.without)
    bare = tuple(e for e in BARE if e.name not in asked.without)
    for environment in sorted({e.environment for e in peers} & set(NEEDS)):
        install(environment)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as space:
        for name in asked.workloads:
            folder, log = Path(space) / name, Path(tempfile.gettempdir()) / "bench-peers.log"
            prepare(name, folder)
            together = (*bare, SHOAL, *(e for e in peers if e is not FLOWER))
            racers = raced(together, name, asked.turns, folder, log)
            rows += report(name, racers)
            if FLOWER in peers:
                rows += report(name, raced((*bare, FLOWER), name, asked.turns, folder, log))[-1:]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    for name in asked.workloads:
        own = next(r["ratio"] for r in rows if r["workload"] == name and r["contestant"] == "shoal")
        print(f"{name} shoal/bare {own:.3f}")


if __name__ == "__main__":
    main()
