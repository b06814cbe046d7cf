"""``make bench-methods``: what a method costs a round beside FedAvg, same engine, same work.

Methods whose mathematics adds only vector algebra should cost little more than FedAvg; FedSAM takes
two gradients a step. FedAvg plays right before every turn of a method, and the median of those
ratios counts: the machine changes its speed within a run by more than the bars allow.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.bare import WORKLOADS, BareLoop
from benchmarks.federation import ShoalRounds
from shoal import catalog
from shoal.engines.base import Order
from shoal.engines.vectorized import Vectorized
from shoal.method import Method
from shoal.tree import Tree

PAPERS = ("fedinit", "special", "special_c")  # FLASH and FedAgg need options, see below
OTHERS = ("fedprox", "fedacg", "feddyn", "scaffold", "fedcm", "fedsam")
LIMITS = {"W3": 1.15, "W2": 1.5}
ROUNDS = {"W3": 1, "W2": 40}


def contestants(papers_only: bool) -> dict[str, Method]:
    """The papers' methods first; FLASH without early stopping, FedAgg without its probe's time.

    DynamicInit is FedAvg between two changes of members; its extra rounds are counted apart.
    """
    names = PAPERS if papers_only else (*PAPERS, *OTHERS)
    methods = {name: catalog.METHODS[name]() for name in names}
    methods["flash"] = catalog.flash(gamma=None)
    methods["fedagg"] = catalog.METHODS["fedagg"](epochs=1)
    return methods


class ProbesApart(Vectorized):
    """Says how long questions to clients took, so that they can be left out."""

    asked = 0.0

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]:
        begin = time.perf_counter()
        answers = super().ask(order, question, payload)
        self.asked += time.perf_counter() - begin
        return answers


def measure(workload: str, repeats: int, papers_only: bool) -> tuple[float, dict[str, list[float]]]:
    """FedAvg's median seconds a round; of every method the ratios to the FedAvg just before it."""
    work, count = WORKLOADS[workload], ROUNDS[workload]
    torch.set_num_threads(1)
    x, y = work.data()
    start = BareLoop(work).model
    entries = {"fedavg": catalog.fedavg(), **contestants(papers_only)}
    rounds = 2 + count * (len(entries) + 1) * repeats
    engines = {name: ProbesApart() for name in entries}
    players = {
        name: ShoalRounds(work, method, engines[name], x, y, start, rounds=rounds)
        for name, method in entries.items()
    }
    reached = dict.fromkeys(players, 0)

    def seconds(name: str, many: int) -> float:
        asked, begin = engines[name].asked, time.perf_counter()
        for _ in range(many):
            players[name].round(reached[name])
            reached[name] += 1
        return (time.perf_counter() - begin - engines[name].asked + asked) / many

    for name in players:
        seconds(name, 2)  # traces
    base, ratios = list[float](), {name: list[float]() for name in players if name != "fedavg"}
    for _ in range(repeats):
        for name, found in ratios.items():
            base.append(seconds("fedavg", count))
            found.append(seconds(name, count) / base[-1])
    return statistics.median(base), ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(LIMITS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--papers", action="store_true", help="the five papers' methods only")
    asked = parser.parse_args()
    for workload in asked.workloads:
        base, found = measure(workload, asked.repeats, asked.papers)
        print(f"{workload}: fedavg {1e3 * base:.2f} ms a round", flush=True)
        for name, ratios in found.items():
            limit = 2.2 if name == "fedsam" else LIMITS[workload]
            ratio = statistics.median(ratios)
            verdict = "" if ratio <= limit else "  over"
            spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{workload} {name:10} /fedavg {ratio:.3f} {spread}  bar {limit}{verdict}")


if __name__ == "__main__":
    main()
