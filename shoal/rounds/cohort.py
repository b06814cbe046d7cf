"""Who takes part in a round: the world's and the config's business, not a method's.

Of the members that can be reached, ``participation`` says how many and ``sampling`` which:

    fixed            all equally likely
    bernoulli        each by itself, so that the number varies
    by_rows          the more rows, the likelier: without replacement, in proportion to rows
    by_loss          of some candidates, drawn by rows, those of the highest loss (power of choice)
    round_robin      one after another, by number
    by_availability  first those that could be reached least often of late

Where nothing tells members apart (equal rows, equal availability), the draw is that of ``fixed``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.core import rng
from shoal.core.rng import Keys
from shoal.core.world_protocol import Moment
from shoal.metrics.evaluate import evaluate_each
from shoal.rounds.state import Round, Settings

RECENT = 20  # rounds that say how often a member could be reached, this one included
LOOKED_AT = 100_000  # members whose rows are counted every round
Floats = NDArray[np.float64]


def choose_cohort(settings: Settings, moment: Moment, attempt: int = 0) -> tuple[int, ...]:
    """The clients of a round that is drawn at random, sorted; a retry draws others."""
    members = moment.members
    if settings.cohorts is not None:
        return settings.cohorts[moment.round]
    size, bernoulli = _size(settings, moment), settings.sampling == "bernoulli"
    if size >= len(members) and not bernoulli:
        return tuple(int(m) for m in members)
    key = _key(settings, moment, attempt)
    if bernoulli:
        wanted = settings.participation
        share = wanted if isinstance(wanted, float) else wanted / max(1, len(members))
        drawn = np.flatnonzero(rng.uniform(key, len(members))[0] < share)
        picks = drawn if len(drawn) else rng.sample(key, len(members), 1)
    else:
        picks = rng.sample(key, len(members), size)
    return tuple(int(members[int(i)]) for i in picks)


def cohort_of(round: Round, attempt: int = 0) -> tuple[int, ...]:
    """The clients of a round by its rule, sorted; questions that it takes are paid for."""
    settings, moment = round.settings, round.moment
    drawn = settings.cohorts is not None or settings.sampling in ("fixed", "bernoulli")
    if drawn or _size(settings, moment) >= len(moment.members):
        return choose_cohort(settings, moment, attempt)
    size, key = _size(settings, moment), _key(settings, moment, attempt)
    if settings.sampling == "round_robin":
        return _in_turn(round, size)
    if settings.sampling == "by_availability":
        picks = _highest(-_reached(settings, moment), size, key)
    elif settings.sampling == "by_loss":
        picks = _by_loss(round, size, key)
    else:
        picks = by_weight(_rows(settings, moment), size, key)
    return tuple(int(moment.members[int(i)]) for i in picks)


def _key(settings: Settings, moment: Moment, attempt: int) -> Keys:
    return rng.keys(settings.seed, rng.Purpose.COHORT, moment.key, attempt)


def _size(settings: Settings, moment: Moment) -> int:
    wanted = settings.participation
    return max(1, round(wanted * len(moment.members))) if isinstance(wanted, float) else wanted


def by_weight(weight: Floats, size: int, key: Keys) -> NDArray[np.int64]:
    """``size`` different places, sorted: one after another, each in proportion to its weight among
    those that are left (Efraimidis and Spirakis: the highest ``u^(1/w)``).

    >>> by_weight(np.array([1.0, 0.0, 2.0]), 2, rng.keys(0, rng.Purpose.COHORT, 0)).tolist()
    [0, 2]
    """
    with np.errstate(divide="ignore"):
        return _highest(np.log(rng.uniform(key, len(weight))[0]) / weight, size, key, weight)


def _highest(score: Floats, size: int, key: Keys, told: Floats | None = None) -> NDArray[np.int64]:
    """The places of the highest scores, ties at random; the plain draw where ``told`` (unless
    given, the scores themselves) are all equal."""
    of = score if told is None else told
    if (of == of[0]).all():
        return rng.sample(key, len(score), size)
    order = np.lexsort((rng.uniform(key, len(score))[0], -score))
    return np.sort(order[:size])


def _rows(settings: Settings, moment: Moment) -> Floats:
    """The rows of every member that is here (what they stand for, where that differs)."""
    world = settings.world
    return np.array([world.train(int(m), moment.round).count for m in moment.members], np.float64)


def _reached(settings: Settings, moment: Moment) -> Floats:
    """In how many of the last rounds each member could be reached."""
    counts = np.zeros(len(moment.members))
    for past in range(max(0, moment.round - RECENT + 1), moment.round + 1):
        counts += np.isin(np.asarray(moment.members), np.asarray(settings.world.at(past).members))
    return counts


def _in_turn(round: Round, size: int) -> tuple[int, ...]:
    """The next members by number, after the one that was asked last."""
    members = np.asarray(round.moment.members)
    first = int(np.searchsorted(members, round.federation.turn))
    picks = members[(first + np.arange(size)) % len(members)]
    round.federation.turn = int(picks[-1]) + 1
    return tuple(sorted(int(m) for m in picks))


def _by_loss(round: Round, size: int, key: Keys) -> NDArray[np.int64]:
    """Of the candidates, those on whose rows the global model's loss is highest."""
    settings, moment = round.settings, round.moment
    wanted = settings.candidates or 2 * size
    places = np.arange(len(moment.members))
    if wanted < len(places):
        places = by_weight(_rows(settings, moment), max(size, wanted), key)
    members: Sequence[int] = [int(moment.members[int(i)]) for i in places]
    model = round.federation.models[0]
    data = [settings.world.train(m, moment.round) for m in members]
    found = evaluate_each(settings.task, model, data)
    if round.spent is not None:
        round.spent.looked(settings, model, members)
    losses = np.array([s.loss for s in found])
    losses[~np.isfinite(losses)] = np.inf  # a model that breaks on somebody's rows needs them
    return places[_highest(losses, size, key)]
