"""``make bench-ray``: what a round costs on a Ray cluster, a model of it, and what that predicts.

Each load is played by ``stacked`` on one thread and on two, and by ``ray`` with some numbers of
workers on this machine, turn by turn. ``driver`` is the processor time of the driver alone (Ray's
threads included), ``above`` what that is per client beyond what ``stacked`` spends outside of
training. A cost model is fitted to rounds of several sizes, and drawn beside what was measured.

    python -m benchmarks.cluster W1 W3 --workers 1 2 --figures cluster.jsonl
    python -m benchmarks.cluster fit --figures cluster.jsonl
    python -m benchmarks.cluster --figures cluster.jsonl --plot docs/images/ray-cost.png
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
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
from shoal.engines.stacked.engine import Stacked
from shoal.engines.stacked.plan import FINEST
from shoal.runs.cluster import ray as ray_engine
from shoal.runs.cluster.connect import Cluster
from shoal.runs.cluster.ray import Ray

ASKED = ("W1", "W3", "W5", "R2", "tiny")
TINY = Load("10,000 tiny clients", lambda: perceptron(8, 4, 2), features(8), (4,) * 10_000, 10_000,
            4, classes=2)  # fmt: skip
NODES, MEMBERS, COHORT = 64, 1_000_000, 10_000  # a cluster that we do not have
Row = dict[str, Any]
Costs = dict[str, float]


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


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many shares went out, and how many sums they bring back, meanwhile."""
    seen, cut = [0, 0], ray_engine.shares_of

    def counting(*asked: Any, **more: Any) -> Any:
        found = cut(*asked, **more)
        seen[0] += len(found)
        seen[1] += sum([max(1, len(share.branches)) for share in found])
        return found

    ray_engine.shares_of = counting  # type: ignore[assignment]
    try:
        yield seen
    finally:
        ray_engine.shares_of = cut


def measured(name: str, load: Load, counts: list[int], turns: int) -> list[Row]:
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
            with counted() as seen:
                seat.play(1)
            row["shares"], row["models"] = seen[0], seen[1] / count
        rows.append(row)
        shown = [f"{k} {v:.2f}" for k, v in row.items() if isinstance(v, float)]
        print(f"{name:5} {seat.name:18} ", *shown, flush=True)
    for seat in seats:
        seat.engine.close()
    return rows


# ---- the model -----------------------------------------------------------------------------------
def fitted(turns: int) -> Costs:
    """Microseconds of the driver for a round, a share and a client, and for a megabyte of sums and
    models: least squares of relative errors over rounds of several sizes, whole and in shares."""
    points, spent = [], []
    for workers in (1, 4):
        engine = Ray(Cluster(workers=workers))
        for clients in (10, 100, 1000, 10_000):
            for hidden in (4, 2_000, 40_000):
                if clients * hidden > 4_000_000:
                    continue
                load = replace(TINY, sizes=(4,) * clients, cohort=clients,
                               build=lambda hidden=hidden: perceptron(8, hidden, 2))  # fmt: skip
                seat = Seat("fit", load, engine)
                seat.play(2)
                with counted() as seen:
                    cost = min(seat.play(2).driver for _ in range(turns))
                many, sums = [n / (2 * turns) for n in seen]
                points.append([1.0, many, clients, megabytes(load) * (1 + sums)])
                spent.append(1e3 * cost)
        engine.close()
    weight = 1 / np.array(spent)
    known = np.array(points) * weight[:, None]
    found, *_ = np.linalg.lstsq(known, np.ones(len(spent)))
    errors = np.abs(known @ found - 1)
    print(f"the model is off by {np.median(errors):.0%}, at most by {errors.max():.0%}")
    return dict(zip(("round", "share", "client", "megabyte"), found.tolist(), strict=True))


def predicted(costs: Costs, training: float, clients: int, size: float, at_once: int,
              many: float, sums: float) -> float:  # fmt: skip
    """Milliseconds of a round: training and what shares cost their workers, both divided by those
    who can work at once, and the driver's own time."""
    driver = (costs["round"] + many * costs["share"] + clients * costs["client"]
              + size * (1 + sums) * costs["megabyte"])  # fmt: skip
    return (training + 1e-3 * many * costs["worker"]) / at_once + 1e-3 * driver


def at_work(row: Row) -> int:
    """How many workers can have worked at once."""
    return int(min(row["workers"], cores(), row["shares"]))


def of_workers(rows: list[Row]) -> float:
    """Microseconds that a share costs its worker beside training: what is left of the rounds that
    were measured with several of them."""
    left = []
    for row in rows:
        if row["workers"] > 1:
            at_once = at_work(row)
            training = alone_of(rows, row["load"]) / at_once
            left.append(1e3 * (row["wall"] - training - row["driver"]) * at_once / row["shares"])
    return max(0.0, statistics.median(left)) if left else 0.0


def larger(costs: Costs, rows: list[Row], name: str, nodes: int) -> float:
    """Milliseconds of a round in which COHORT clients like those of a load take part: two
    shares a worker, as far as there are chunks, and two sums a share."""
    load, alone = loads()[name], alone_of(rows, name)
    training, many = alone * COHORT / load.cohort, min(2 * nodes, FINEST)
    sums = min(2 * many, FINEST)
    return predicted(costs, training, COHORT, megabytes(load), nodes, many, sums)


def alone_of(rows: list[Row], name: str) -> float:
    """What ``stacked`` takes on one thread."""
    return statistics.median(
        r["wall"] for r in rows if r["load"] == name and "1 thread" in r["engine"]
    )


def megabytes(load: Load) -> float:
    return 4e-6 * sum(p.numel() for p in load.build().parameters())


def plot(path: Path, rows: list[Row], costs: Costs) -> None:
    """Left what was measured and the model of it, right what that says of larger clusters."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    for name in dict.fromkeys(row["load"] for row in rows):
        load, alone = loads()[name], alone_of(rows, name)
        ray = [row for row in rows if row["load"] == name and row["workers"]]
        places = [row["workers"] for row in ray]
        (line,) = left.plot(places, [row["wall"] / alone for row in ray], "o")
        size = megabytes(load)
        ours = [predicted(costs, alone, load.cohort, size, at_work(row), row["shares"],
                          row["models"] * n) / alone
                for row, n in zip(ray, places, strict=True)]  # fmt: skip
        left.plot(places, ours, color=line.get_color(), label=name)
        many = [1, 2, 4, 8, 16, 32, NODES]
        right.plot(many, [larger(costs, rows, name, n) for n in many], color=line.get_color())
        start = larger(costs, rows, name, 1)
        right.annotate(f"{name} ", (1, start), color=line.get_color(), va="center", ha="right")
    left.set(xlabel=f"workers on {cores()} cores", ylabel="a round / stacked on one thread")
    left.set(title="Measured (dots) and the model", xticks=[1, 2, 3, 4], ylim=(0, None))
    left.legend(frameon=False, ncols=3, loc="lower left")
    right.set(xlabel="nodes of one core", ylabel="milliseconds per round")
    right.set(xscale="log", yscale="log")
    right.set(title=f"Model: {COHORT:,} of {MEMBERS:,} members", xlim=(0.5, 80))
    right.set_xticks([1, 4, 16, NODES], labels=["1", "4", "16", str(NODES)])
    right.minorticks_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def loads() -> dict[str, Load]:
    return {**LOADS, "tiny": TINY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", help=f"of {', '.join(loads())}, or fit: the model")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--figures", type=Path, help="a file of JSON lines that is added to")
    parser.add_argument("--plot", type=Path, help="draw what is in --figures, and measure nothing")
    asked = parser.parse_args()
    found: list[Row] = []
    if asked.plot is None:
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        import_module("ray").init(address="local", num_cpus=1 + sum(asked.workers), **options)
        for name in asked.loads or [*ASKED, "fit"]:
            new = [{"costs": fitted(asked.turns)}] if name == "fit" else \
                measured(name, loads()[name], asked.workers, asked.turns)  # fmt: skip
            found += new
            if asked.figures:
                with asked.figures.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
    if asked.figures:
        found = [json.loads(line) for line in asked.figures.read_text().splitlines()]
    rows = [row for row in found if "costs" not in row]
    costs = [row["costs"] for row in found if "costs" in row]
    if not costs:
        return
    print("the driver's microseconds: "
          + ", ".join(f"a {k} {v:.2f}" for k, v in costs[-1].items()))  # fmt: skip
    costs[-1]["worker"] = of_workers(rows)
    print(f"a share costs its worker {costs[-1]['worker']:.0f} microseconds beside training")
    for name in dict.fromkeys(row["load"] for row in rows):
        one, many = (larger(costs[-1], rows, name, nodes) for nodes in (1, NODES))
        print(f"{COHORT:,} of {MEMBERS:,} members like {name}: {one:.0f} ms on one node, "
              f"{many:.0f} ms on {NODES}")  # fmt: skip
    if asked.plot:
        plot(asked.plot, rows, costs[-1])


if __name__ == "__main__":
    main()
