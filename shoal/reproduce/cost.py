"""What a config costs before it is played: sample passes, FLOPs, and seconds on this machine.

A local step and a tested row are timed here. What a run, a round, a client's turn and a test cost
around them are constants, set by hand to fit the seconds that the runs in ``docs/results/runs``
took (an Intel Xeon, two runs at a time on two cores); ``scripts/check_cost.py`` shows how well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.config.config import Config
from shoal.reproduce.methods_cost import times
from shoal.reproduce.speed import Speed, speed
from shoal.reproduce.workload import Workload, rounds_of, workload

BACKWARD = 3.0  # a step has about three forward passes' arithmetic

RUN = 1.0  # seconds: data, world, the first step's trace, the summary
ROUND = 0.010  # cohort, orders, sums, the journal; part of it is the checkpoint's
VISIT = 0.0005  # a client's batches and its share of the sum
TEST = 0.001  # one model tested, beside its rows
CROWDED = 1.3  # with a run on every core each is slower than the step that was timed alone


@dataclass(frozen=True)
class Cost:
    """Of one run, or of several together."""

    passes: float  # samples put forward and back in training
    flops: float  # of training and evaluation
    seconds: float  # on one core

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.passes + other.passes, self.flops + other.flops, self.seconds + other.seconds
        )


NOTHING = Cost(0.0, 0.0, 0.0)


def total(configs: Iterable[Config]) -> Cost:
    """All configs together."""
    return sum((cost(config) for config in configs), NOTHING)


def cost(config: Config) -> Cost:
    """Counted from the config, with what its method is known to add to plain SGD."""
    if config.problem is not None:
        return NOTHING
    work, fast = workload(config), speed(config)
    flops = (work.passes * BACKWARD + work.scored) * fast.flops
    return Cost(work.passes, flops, seconds(work, fast, times(config.method)))


def seconds(work: Workload, fast: Speed, factor: float) -> float:
    """Of a run with this much work, whose steps cost ``factor`` plain ones."""
    around = RUN + ROUND * work.rounds + VISIT * work.visits + TEST * work.tests
    return CROWDED * (around + factor * fast.step * work.steps + fast.row * work.scored)


__all__ = ["NOTHING", "Cost", "cost", "rounds_of", "seconds", "total"]
