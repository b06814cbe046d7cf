"""Who takes part in a round: the world's and the config's business, not a method's."""

from __future__ import annotations

import numpy as np

from shoal import rng
from shoal.federation import Settings
from shoal.worlds.base import Moment


def choose_cohort(settings: Settings, moment: Moment, attempt: int = 0) -> tuple[int, ...]:
    """The clients of a round, sorted; a retry draws others."""
    members, wanted = moment.members, settings.participation
    if settings.cohorts is not None:
        return settings.cohorts[moment.round]
    key = rng.keys(settings.seed, rng.Purpose.COHORT, moment.key, attempt)
    if settings.sampling == "bernoulli":
        share = wanted if isinstance(wanted, float) else wanted / max(1, len(members))
        drawn = np.flatnonzero(rng.uniform(key, len(members))[0] < share)
        picks = drawn if len(drawn) else rng.sample(key, len(members), 1)
    else:
        size = max(1, round(wanted * len(members))) if isinstance(wanted, float) else wanted
        if size >= len(members):
            return tuple(int(m) for m in members)
        picks = rng.sample(key, len(members), size)
    return tuple(int(members[int(i)]) for i in picks)
