"""Figures of the runs behind FedAgg's claims."""

from __future__ import annotations

from statistics import stdev

from shoal.reproduce.measures import Reading, measure


@measure
def mean_of(run: Reading, *, key: str, times: float = 1.0, root: bool = False) -> float | None:
    """Mean over rounds of a number that every round's record has, times a factor.

    ``root`` takes the square root of each first (a mean squared distance becomes a distance).
    """
    found = [float(r[key]) for r in run.records if r.get(key) is not None]
    values = [v**0.5 if root else v for v in found]
    return times * sum(values) / len(values) if values else None


@measure
def mean_rate(run: Reading) -> float | None:
    """The mean rate that clients used: what they were told, or the config's own."""
    told = mean_of(run, key="mean_client_rate")
    return run.config.local.rate if told is None else told


@measure
def rounds_to(run: Reading, *, level: float) -> float | None:
    """Rounds until an accuracy (in percent) is reached; one more than there are if it never is."""
    for count, value in enumerate(run.accuracy, 1):
        if value is not None and 100.0 * value >= level:
            return float(count)
    return float(len(run.accuracy) + 1)


@measure
def fluctuation(run: Reading) -> float | None:
    """Standard deviation of the change of accuracy from round to round, in points."""
    known = [100.0 * a for a in run.accuracy if a is not None]
    changes = [b - a for a, b in zip(known, known[1:], strict=False)]
    return stdev(changes) if len(changes) > 1 else None
