"""``make bench-methods``: what a method costs a round beside FedAvg, same engine, same work.

Methods whose mathematics adds only vector algebra should cost little more than FedAvg; FedSAM takes
two gradients per step. FedAvg plays right before every turn of a method, and the median of those
ratios counts: the machine changes its speed within a run by more than the bars allow.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.bare import WORKLOADS, BareLoop
from benchmarks.federation import ShoalRounds, method_of
from benchmarks.loads import SMALL
from benchmarks.turns import Seat, median, ratio, seat_all, take_turns
from shoal import catalog
from shoal.engines.stacked.engine import Stacked
from shoal.methods.method import Method
from shoal.rounds import play

PAPERS = ("fedinit", "special", "special_c")  # FLASH and FedAgg need options, see below
OTHERS = ("fedprox", "fedacg", "feddyn", "scaffold", "fedcm", "fedsam")
LIMITS = {"W3": 1.15, "W2": 1.5}
OLD_LIMITS = {"feddyn": {"W2": 1.25}}  # new / old; 1.15 for all others
ROUNDS = {"W3": 1, "W2": 40}


def contestants(papers_only: bool) -> dict[str, Method]:
    """The papers' methods first; FedAgg without its probe's time.

    DynamicInit is FedAvg between two changes of members; its extra rounds are counted apart.
    """
    return {name: method_of(name) for name in names_of(papers_only)}


def names_of(papers_only: bool) -> tuple[str, ...]:
    return (*PAPERS, *(() if papers_only else OTHERS), "flash", "fedagg")


@dataclass
class Player:
    """A federation and the round it has reached."""

    federation: ShoalRounds
    questions: Questions
    reached: int = 0

    def seconds(self, rounds: int) -> float:
        """Time a round over the next rounds, questions to clients left out."""
        asked, begin = self.questions.seconds, time.perf_counter()
        for _ in range(rounds):
            self.federation.round(self.reached)
            self.reached += 1
        return (time.perf_counter() - begin - self.questions.seconds + asked) / rounds


class Questions:
    """Puts a round's questions to clients and says how long that took, so that it can be left out:
    what FedAgg's probe costs is counted apart."""

    def __init__(self) -> None:
        self.seconds, self._put = 0.0, play._ask

    def __call__(self, *arguments: Any) -> None:
        begin = time.perf_counter()
        self._put(*arguments)
        self.seconds += time.perf_counter() - begin


def measure(
    workload: str, repeats: int, papers_only: bool, questions: Questions
) -> Iterator[tuple[str, float, list[float]]]:
    """Of every method FedAvg's median seconds a round, and its ratios to the FedAvg before it."""
    work = WORKLOADS[workload]
    torch.set_num_threads(1)
    x, y = work.data()
    start = BareLoop(work).model

    def player(method: Method) -> Player:
        rounds = 2 + ROUNDS[workload] * repeats * (len(PAPERS) + len(OTHERS) + 2)
        played = ShoalRounds(work, method, Stacked(), x, y, start, rounds=rounds)
        return Player(played, questions)

    fedavg = player(catalog.fedavg())
    fedavg.seconds(2)  # traces
    for name, method in contestants(papers_only).items():
        mine, base, ratios = player(method), list[float](), list[float]()
        mine.seconds(2)
        for _ in range(repeats):
            base.append(fedavg.seconds(ROUNDS[workload]))
            ratios.append(mine.seconds(ROUNDS[workload]) / base[-1])
        yield name, statistics.median(base), ratios


def against(old: Path, workload: str, repeats: int, papers_only: bool) -> None:
    """Every method beside the same method in another checkout, turn by turn, on one thread."""
    turn = ROUNDS.get(workload, SMALL[workload].turn)
    for name in ("fedavg", *names_of(papers_only)):
        with ExitStack() as stack:
            new = Seat("new", workload, method=name, rounds=3 + turn * (repeats + 1))
            seats = seat_all(stack, [new, replace(new, name="old", checkout=old)])
            for player in seats.values():
                player.play(3)  # compiles
            take_turns(list(seats.values()), repeats, turn)
            found = ratio(seats["new"], seats["old"])
            limit = OLD_LIMITS.get(name, {}).get(workload, 1.15)
            both = " and ".join(f"{1e3 * median(p):.2f}" for p in seats.values())
            over = "" if found <= limit else "  over"
            line = f"{workload} {name:10} new/old {found:.3f} ({both} ms)  bar {limit}{over}"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(LIMITS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--papers", action="store_true", help="the five papers' methods only")
    parser.add_argument("--old", type=Path, help="another checkout: prints new / old instead")
    asked = parser.parse_args()
    if asked.old:
        for workload in asked.workloads:
            against(asked.old, workload, asked.repeats, asked.papers)
        return
    with mock.patch.object(play, "_ask", Questions()) as questions:
        for workload in asked.workloads:
            for found in measure(workload, asked.repeats, asked.papers, questions):
                show(workload, *found)


def show(workload: str, name: str, base: float, ratios: list[float]) -> None:
    limit = 2.2 if name == "fedsam" else LIMITS[workload]
    ratio = statistics.median(ratios)
    verdict = "" if ratio <= limit else "  over"
    spread = f"({min(ratios):.2f} to {max(ratios):.2f}; fedavg {1e3 * base:.2f} ms)"
    line = f"{workload} {name:10} /fedavg {ratio:.3f} {spread}  bar {limit}{verdict}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
