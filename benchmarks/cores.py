"""``make bench-cores``: what more cores bring, and what they could bring at most.

Two threads of shoal against one, and beside them what two bare loops in processes of their own gain
over one, turn by turn: memory and clocks are shared, so that is rarely 2. Then a bound for machines
with more cores, from what was measured on one thread: the serial share (of a round's time, what is
done outside of chunks), the lock share (of the chunks' time, what holds Python's lock) and the
chunks of a round, which follow from the work alone. The machine must be quiet.

    python -m benchmarks.cores W1 R2 --turns 5
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.federation import rounds_of
from benchmarks.loads import LOADS
from benchmarks.turns import Player, Seat, Spent, seat_all
from shoal.engines.stacked import engine

ASKED = ("W1", "W1b", "W3", "W5", "R2", "R3")
MANY = (16, 64)
ROUNDS = 3  # in which shares are measured


@dataclass
class Shares:
    """Of a round on one thread."""

    chunks: int
    serial: float  # of the round's time
    lock: float  # of the chunks' time

    def bound(self, cores: int) -> float:
        """How many times faster so many cores are at most: the lock is held by one thread at a
        time, and no chunk is split."""
        inside = 1 - self.serial
        turns = -(-self.chunks // cores) / self.chunks
        return 1 / (self.serial + max(inside * turns, inside * self.lock))


class Counter(threading.Thread):
    """Counts for as long as it gets Python's lock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count, self.over = 0, False

    def run(self) -> None:
        while not self.over:
            self.count += 1


def speed_of_counting(during: Any) -> float:
    """Counts per second while something is done (a function), or for a moment."""
    counter = Counter()
    counter.start()
    began, before = time.perf_counter(), counter.count
    during()
    rate = (counter.count - before) / (time.perf_counter() - began)
    counter.over = True
    counter.join()
    return rate


def shares_of(name: str) -> Shares:
    """Measured on one thread; a second core counts how long the lock is free."""
    load = LOADS[name]
    torch.set_num_threads(1)
    rounds = rounds_of(load, *load.data(), 100, 1, torch.float32)
    inside, plain = list[float](), engine._Work.run

    def timed(work: Any, number: int) -> Any:
        began = time.perf_counter()
        found = plain(work, number)
        inside.append(time.perf_counter() - began)
        return found

    engine._Work.run = timed  # type: ignore[method-assign]
    try:
        for number in range(load.warm_up):
            rounds.round(number)
        inside.clear()
        began = time.perf_counter()
        for number in range(load.warm_up, load.warm_up + ROUNDS):
            rounds.round(number)
        whole, chunks = time.perf_counter() - began, len(inside) // ROUNDS
        serial = 1 - sum(inside) / whole
    finally:
        engine._Work.run = plain  # type: ignore[method-assign]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or a counter keeps the lock for as long as it likes
    try:
        free = speed_of_counting(lambda: time.sleep(0.5))
        beside = speed_of_counting(lambda: [rounds.round(20 + number) for number in range(ROUNDS)])
    finally:
        sys.setswitchinterval(before)
    held = min(1.0, max(0.0, 1 - beside / free))  # serial work holds it all the time
    lock = max(0.0, (held - serial) / (1 - serial)) if serial < 1 else 1.0
    return Shares(chunks, max(0.0, serial), lock)


def awake(player: Player, rounds: int) -> Spent:
    """A turn, and what the next one takes: a contestant that has slept begins with all of its
    threads on one core, and Linux takes some 40 ms to spread them. A run does not sleep."""
    player.play(rounds)
    return player.play(rounds)


def both(first: Player, second: Player, rounds: int) -> float:
    """Seconds of a round, two contestants at once."""
    with ThreadPoolExecutor(2) as pool:
        found: list[Spent] = list(pool.map(lambda player: awake(player, rounds), (first, second)))
    return max(spent.wall for spent in found)


def gains(name: str, turns: int) -> tuple[float, float]:
    """Two threads over one, and two bare processes over one, medians over turns."""
    load = LOADS[name]
    seats = [Seat("one", name, threads=1), Seat("two", name, threads=2),
             Seat("bare", name, "plain"), Seat("beside", name, "plain")]  # fmt: skip
    ours, theirs = list[float](), list[float]()
    with ExitStack() as stack:
        players = seat_all(stack, seats)
        for player in players.values():
            player.play(load.warm_up)
        for _ in range(turns):
            one, two = (awake(players[seat], load.turn).wall for seat in ("one", "two"))
            ours.append(one / two)
            alone = awake(players["bare"], load.turn).wall
            theirs.append(2 * alone / both(players["bare"], players["beside"], load.turn))
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("loads", nargs="*", default=list(ASKED))
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    bounds = "  ".join(f"{f'{cores} cores':>8}" for cores in MANY)
    print(
        f"{'':5} {'2 threads':>9} {'2 bare':>7} {'chunks':>7} {'serial':>7} {'lock':>6}  {bounds}"
    )
    for name in arguments.loads:
        ours, theirs = gains(name, arguments.turns)
        found = shares_of(name)
        most = "  ".join(f"{found.bound(cores):7.1f}x" for cores in MANY)
        print(
            f"{name:14} {ours:8.2f}x {theirs:6.2f}x {found.chunks:7} {found.serial:7.1%} "
            f"{found.lock:6.1%}  {most}",
            flush=True,
        )


if __name__ == "__main__":
    main()
