"""What a stream looks like: which share of the rows held each class has, as the window moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.worlds.composed import Composed
from shoal.worlds.spans import spread

_LOOKED_AT = 16  # members whose rows are counted


def class_shares(world: Composed, rounds: Sequence[int]) -> NDArray[np.float64]:
    """``[rounds, classes]``: shares of the labels that members here (16 evenly spaced ones of
    more) train on in each of the rounds."""
    classes = world.classes or 1
    out = np.zeros((len(rounds), classes))
    for place, round in enumerate(rounds):
        for member in spread(world.here(round), _LOOKED_AT):
            labels = world.train(member, round).labels.cpu().numpy()
            out[place] += np.bincount(labels, minlength=classes)[:classes]
    shares: NDArray[np.float64] = out / np.maximum(1.0, out.sum(1, keepdims=True))
    return shares


def described(world: Composed) -> str:
    """How the window moves, in one line; empty where there is no stream."""
    if world.stream is None:
        return ""
    sizes = [n for stage in world.stages for n in stage.population.sizes()]
    held, new = world.stream.size(max(sizes)), max(sizes) / (world.stream.rounds + 1)
    return f"a member holds its last {held:,} rows; about {new:,.1f} new ones come every round"
