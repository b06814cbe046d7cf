"""``make bench-ray``: what a round costs on a Ray cluster, a model of it, and what that predicts.

Each load is played by ``stacked`` on one thread and on two, and by ``ray`` with some numbers of
workers on this machine, turn by turn. ``driver`` is the processor time of the driver alone (Ray's
threads included), ``above`` what that is per client beyond what ``stacked`` spends outside of
training. A cost model is fitted to rounds of several sizes, and drawn beside what was measured.

    python -m benchmarks.cluster W1 W3 --workers 1 2 --plot docs/images/ray.png
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.federation import Rounds, rounds_of
from benchmarks.loads import LOADS, Load, features
from benchmarks.networks import perceptron
from shoal.core.machine import cores
from shoal.engines.stacked import engine as stacked
from shoal.engines.stacked.engine import Stacked, in_one_pool
from shoal.runs.cluster.connect import Cluster
from shoal.runs.cluster.ray import Ray
from shoal.runs.cluster.shares import shares_of

ASKED = ("W1", "W3", "W5", "R2", "tiny")
TINY = Load("10,000 tiny clients", lambda: perceptron(8, 4, 2), features(8), (4,) * 10_000, 10_000,
            4, classes=2)  # fmt: skip
NODES = 64


@dataclass(frozen=True)
class Spent:
    """Milliseconds of a round: as a clock says, and of this process's processors."""

    wall: float
    driver: float


class Seat:
    """One engine at a load."""

    def __init__(self, name: str, load: Load, engine: Any, rounds: int = 1000) -> None:
        self.name, self.load, self.engine, self.spent = name, load, engine, list[Spent]()
        x, y = load.data()
        self.rounds: Rounds = rounds_of(load, x, y, rounds, 1, torch.float32)
        self.rounds.engine, self.number = engine, 0

    def play(self, count: int) -> Spent:
        wall, driver = time.perf_counter(), time.process_time()
        for _ in range(count):
            self.rounds.round(self.number)
            self.number += 1
        spent = [1e3 * (now() - then) / count for now, then in
                 ((time.perf_counter, wall), (time.process_time, driver))]  # fmt: skip
        return Spent(*spent)

    def median(self, what: str) -> float:
        return statistics.median(getattr(spent, what) for spent in self.spent)


@contextmanager
def training_time() -> Iterator[list[float]]:
    """Seconds inside of chunks, meanwhile."""
    inside, run = [0.0], stacked._Work.run

    def timed(self: Any, number: int) -> Any:
        begin = time.thread_time()
        try:
            return run(self, number)
        finally:
            inside[0] += time.thread_time() - begin

    stacked._Work.run = timed  # type: ignore[method-assign]
    try:
        yield inside
    finally:
        stacked._Work.run = run  # type: ignore[method-assign]


def outside(load: Load, rounds: int) -> float:
    """Milliseconds of a round that ``stacked`` spends outside of training, on one thread."""
    seat = Seat("outside", load, Stacked(1))
    seat.play(2)
    with training_time() as inside:
        return max(0.0, seat.play(rounds).driver - 1e3 * inside[0] / rounds)


def shares(seat: Seat, workers: int) -> int:
    """How many sums come back in a round."""
    found: list[Any] = []
    engine = Stacked(1)
    train: Callable[..., Any] = engine.train
    engine.train = lambda order: (found.append(order), train(order))[1]  # type: ignore[method-assign]
    copy = Seat("shares", seat.load, engine)
    copy.play(1)
    plan = engine.plan(in_one_pool(found[0]))
    return sum(len(share.branches) for share in shares_of(found[0], plan, workers))


def measured(name: str, load: Load, counts: list[int], turns: int) -> list[dict[str, Any]]:
    seats = [Seat("stacked, 1 thread", load, Stacked(1)), Seat("stacked", load, Stacked(None))]
    seats += [Seat(f"ray, {n}", load, Ray(Cluster(workers=n))) for n in counts]
    base = outside(load, load.turn * turns)
    for seat in seats:
        seat.play(load.warm_up)
    for _ in range(turns):
        for seat in seats:
            seat.spent.append(seat.play(load.turn))
    rows = []
    for seat, count in zip(seats, [0, 0, *counts], strict=True):
        wall, driver = seat.median("wall"), seat.median("driver")
        row = {"load": name, "engine": seat.name, "workers": count, "wall": wall,
               "driver": driver, "ratio": wall / seats[1].median("wall")}  # fmt: skip
        if count:
            row["above"] = 1e3 * (driver - base) / load.cohort
            row["models"] = shares(seat, count) / count
        rows.append(row)
        shown = [f"{k} {v:.2f}" for k, v in row.items() if isinstance(v, float)]
        print(f"{name:5} {seat.name:18} ", *shown, flush=True)
    for seat in seats:
        seat.engine.close()
    return rows


# ---- the model -----------------------------------------------------------------------------------
def fitted(turns: int) -> dict[str, float]:
    """Microseconds of the driver for a round, a share and a client, and for a megabyte of sums and
    models: least squares over rounds of several sizes."""
    points, spent = [], []
    one = Ray(Cluster(workers=1))
    for clients in (10, 100, 1000, 10_000):
        for hidden in (4, 2_000, 40_000):
            if clients * hidden > 4_000_000:
                continue
            load = replace(TINY, sizes=(4,) * clients, cohort=clients,
                           build=lambda hidden=hidden: perceptron(8, hidden, 2))  # fmt: skip
            seat = Seat("fit", load, one)
            seat.play(2)
            cost = min(seat.play(2).driver for _ in range(turns))
            size = 4e-6 * sum(p.numel() for p in load.build().parameters())
            many = shares(seat, 1)
            points.append([1.0, many, clients, size * (1 + many)])
            spent.append(1e3 * cost)
    one.close()
    weight = 1 / np.array(spent)  # relative errors
    found, *_ = np.linalg.lstsq(np.array(points) * weight[:, None], np.array(spent) * weight)
    return dict(zip(("round", "share", "client", "megabyte"), found.tolist(), strict=True))


def predicted(costs: dict[str, float], training: float, clients: int, size: float, workers: int,
              at_once: int | None = None) -> float:  # fmt: skip
    """Milliseconds of a round: training shared by those who can work at once, and the driver's own
    time; two sums a worker."""
    many = 2 * workers
    driver = (costs["round"] + many * costs["share"] + clients * costs["client"]
              + size * (1 + many) * costs["megabyte"])  # fmt: skip
    return training / min(workers, at_once or workers) + 1e-3 * driver


def plot(path: Path, rows: list[dict[str, Any]], costs: dict[str, float]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    names = list(dict.fromkeys(row["load"] for row in rows))
    for name in names:
        load, own = loads()[name], [row for row in rows if row["load"] == name]
        alone = own[0]["wall"]
        size = 4e-6 * sum(p.numel() for p in load.build().parameters())
        ray = [row for row in own if row["workers"]]
        (line,) = left.plot([r["workers"] for r in ray], [r["wall"] / alone for r in ray], "o",
                            label=name)  # fmt: skip
        counts = sorted({1, 2, 3, 4, *(r["workers"] for r in ray)})
        left.plot(counts, [predicted(costs, alone, load.cohort, size, n, cores()) / alone
                           for n in counts], color=line.get_color())  # fmt: skip
        many = [1, 2, 4, 8, 16, 32, NODES]
        right.plot(many, [alone / predicted(costs, alone, load.cohort, size, n) for n in many],
                   color=line.get_color(), label=name)  # fmt: skip
    left.set(xlabel=f"workers on {cores()} cores", ylabel="a round / stacked, 1 thread")
    left.set(title="measured (dots) and the model", xticks=[1, 2, 3, 4])
    right.set(xlabel="nodes of one core", xscale="log", yscale="log", ylabel="times as fast")
    right.set(title="the model, more nodes", xticks=[1, 4, 16, 64], xticklabels=[1, 4, 16, 64])
    left.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def loads() -> dict[str, Load]:
    return {**LOADS, "tiny": TINY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", default=list(ASKED))
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    parser.add_argument("--figures", type=Path, help="JSON lines that are added to, and drawn")
    parser.add_argument("--no-fit", action="store_true", help="measure only")
    asked = parser.parse_args()
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    import_module("ray").init(address="local", num_cpus=1 + sum(asked.workers), **options)
    rows = []
    for name in asked.loads:
        rows += (found := measured(name, loads()[name], asked.workers, asked.turns))
        if asked.figures:
            with asked.figures.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    if asked.figures:
        rows = [json.loads(line) for line in asked.figures.read_text().splitlines()]
    if asked.no_fit:
        return
    costs = fitted(asked.turns)
    print("driver, microseconds: " + ", ".join(f"a {k} {v:.1f}" for k, v in costs.items()))
    # 1,000,000 members of whom 1% train, W5's network and clients of W1's weight
    print(f"{NODES} nodes, 10,000 of 1,000,000 members a round, 10 s of training: "
          f"{predicted(costs, 1e4, 10_000, 0.2, NODES):.0f} ms")  # fmt: skip
    if asked.plot:
        plot(asked.plot, rows, costs)


if __name__ == "__main__":
    main()
