"""``engine: auto``: which engine is fastest for these clients, by trying them for a moment.

Nothing is tried where the answer is plain: a run whose work is tiny, or a round that is not worth
a message to another process, is ``vectorized`` (``loop`` where a method cannot be vectorised).
Otherwise every engine that can run the method trains some clients of the first round; all are
tried in turn, the best of three times counts, and the simplest engine within 5% of the best wins.
What they train is thrown away, so the run's bits are those of the engine that was chosen.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from shoal.cores import cores
from shoal.engines import auto_cache
from shoal.engines.base import Engine, Order
from shoal.engines.remote.shares import shares_of, work_of

TINY = 20_000_000_000  # multiply-adds of a run that is over before trying would have paid
TRIED = 2_000_000_000  # multiply-adds of the clients that each engine tries, about
REPEATS = 3
WARM_UP = {
    "vectorized": 1,
    "loop": 0,
    "processes": 2,
}  # forks, traces; a worker may get none at once
MARGIN = 1.05  # a simpler engine may be so much slower
HOPELESS = 1.5  # an engine so much slower than another is not tried again
SIMPLEST_FIRST = ("vectorized", "loop", "processes")

Make = Callable[[str], Engine]
Clock = Callable[[], float]


class Choice(NamedTuple):
    """An engine by name, and why it was chosen."""

    name: str
    reason: str


def choose(order: Order, cohort: int, rounds: int, make: Make, device: str = "cpu") -> Choice:
    """The engine for a run of ``rounds`` such orders with ``cohort`` clients each."""
    names = able(order, device)
    plain = names[0]
    if len(names) == 1:
        alone = "a round is too small to share out" if cores() > 1 else "there is one core"
        return Choice(plain, alone if device == "cpu" else f"nothing else runs on {device}")
    if is_tiny(order, cohort, rounds):
        return Choice(plain, "the run is too small to try others")
    key = auto_cache.key_of(order, cohort, names)
    known = auto_cache.read(key)
    if known is not None and set(known) == set(names):
        return Choice(best(known), f"{_told(known)}, as tried before on this machine")
    try:
        seconds = measured(order, names, make)
    except Exception as error:  # trying must never be what a run fails of
        return Choice(plain, f"trying others failed ({type(error).__name__}: {error})")
    auto_cache.write(key, seconds)
    return Choice(best(seconds), _told(seconds))


def able(order: Order, device: str) -> list[str]:
    """Engines that can run the order, the one to take without trying first."""
    names = ["loop"] if order.program.method.eager_reason else ["vectorized", "loop"]
    forks = sys.platform.startswith("linux") and device == "cpu" and cores() > 1
    if forks and len(shares_of(order)) > 1:
        names.append("processes")
    elif "vectorized" in names:
        names = ["vectorized"]  # one chunk in one process: nothing to be had elsewhere
    return names


def is_tiny(order: Order, cohort: int, rounds: int) -> bool:
    work = sum(work_of(order, member) for member in order.members)
    return work * cohort * rounds < TINY * len(order.members)


def best(seconds: Mapping[str, float]) -> str:
    """The simplest engine that is nearly as fast as the fastest.

    >>> best({"loop": 3.0, "vectorized": 1.04, "processes": 1.0})
    'vectorized'
    """
    limit = MARGIN * min(seconds.values())
    return next(name for name in SIMPLEST_FIRST if seconds.get(name, limit + 1) <= limit)


def sample(order: Order) -> Order:
    """Some of the members: two shares a core where there are so many, with fewer steps if long."""
    members = tuple(m for share in shares_of(order)[: 2 * cores()] for m in share)
    work = sum(work_of(order, m) for m in members)
    if work > TRIED:
        # the same part of every client's steps, but never none
        rows = order.batch or max(len(m.train) for m in members)
        steps = [-(-len(m.train) // rows) * order.epochs for m in members]
        members = tuple(
            replace(m, steps=max(2, min(m.steps or s, s * TRIED // work)))
            for m, s in zip(members, steps, strict=True)
        )
    return replace(order, members=members)


def measured(
    order: Order, names: Sequence[str], make: Make, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The best time of each engine on a sample of the order, in seconds."""
    tried, engines = sample(order), dict[str, Engine]()
    found = dict.fromkeys(names, math.inf)
    with _threads_as_before() as threads:

        def seconds(name: str) -> float:
            torch.set_num_threads(threads if name == "loop" else 1)
            limit, began = HOPELESS * min(found.values()), clock()
            for _ in engines[name].train(tried):
                if clock() - began > limit:  # it has lost
                    break
            return clock() - began

        try:
            # what forks comes first, before another engine has threads
            for name in sorted(names, key=lambda n: n != "processes"):
                engines[name] = make(name)
                for _ in range(WARM_UP[name]):
                    seconds(name)
            for _ in range(REPEATS):
                limit = HOPELESS * min(found.values())
                for name in [n for n in names if found[n] <= limit]:
                    found[name] = min(found[name], seconds(name))
        finally:
            for engine in engines.values():
                engine.close()
    return found


@contextmanager
def _threads_as_before() -> Iterator[int]:
    """Engines set the number of threads in an operation, which evaluation would notice."""
    threads = torch.get_num_threads()
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _told(seconds: Mapping[str, float]) -> str:
    ranked = sorted(seconds.items(), key=lambda pair: pair[1])
    return "trial: " + ", ".join(f"{name} {1000 * s:.0f} ms" for name, s in ranked)
