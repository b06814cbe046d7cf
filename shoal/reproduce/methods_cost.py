"""What a method adds to plain SGD, as a factor on the time of its local steps.

Set by hand: they began as ratios of the median round to that of FedAvg in the same setting, in
the runs of ``docs/results/runs``, and some were moved until totals there fitted. Those in
``GUESSED`` are guesses: no published run tells (MOON's do not agree with its factor).
"""

from __future__ import annotations

from math import prod
from typing import Any

TIMES = {
    # two gradients, or two models, a step
    "fedsam": 2.0, "mofedsam": 2.0, "fedsmoo": 2.5, "ditto": 2.5, "apfl": 2.5, "moon": 2.5,
    # a second model that is only asked, or a correction in every step
    "flwf_2t": 2.5, "scaffold": 1.6, "feddyn": 1.6, "fedcm": 1.4, "feddc": 2.0, "fedacg": 1.2,
    # clients are asked for more than a step: all models of a bank, or a probe before training
    "hypcluster": 2.0, "feddrift_eager": 2.0, "fedagg": 4.0,
    # clients remember: models of past tasks, rows of past tasks, generators
    "pfeddil": 5.0, "sr_fdil": 16.0, "fedcil": 10.0, "mfcl": 10.0,
    # everybody's loss on all its rows, in every round
    "measure_training_loss": 2.0,
}  # fmt: skip

GUESSED = ("mofedsam", "fedsmoo", "moon", "fedcil", "mfcl")


def names_in(spec: Any) -> list[str]:
    """The names of a config's method.

    >>> names_in(["fedavg", {"dynamic_init": {"R": 10}}])
    ['fedavg', 'dynamic_init']
    """
    if isinstance(spec, list):
        return [name for item in spec for name in names_in(item)]
    return [spec] if isinstance(spec, str) else list(spec)


def times(spec: Any) -> float:
    """How many plain steps one step of the method costs.

    >>> times("fedavg"), times(["fedagg", {"fedinit": {"beta": 0.1}}])
    (1.0, 4.0)
    """
    return prod(TIMES.get(name, 1.0) for name in names_in(spec))
