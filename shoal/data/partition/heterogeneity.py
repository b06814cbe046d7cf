"""How unequal a partition is: label entropy, sizes, distance from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError

Floats = NDArray[np.float64]
Ground = Literal["discrete", "ordered"]


@dataclass(frozen=True)
class Heterogeneity:
    """Figures of a partition, one entry per client; an empty client has no histogram, hence NaN.

    ``entropy``: of the client's labels, in nats. ``distance``: Wasserstein-1 from the client's
    label histogram to that of all labels.
    """

    sizes: NDArray[np.int64]
    entropy: Floats
    distance: Floats

    @property
    def size_spread(self) -> float:
        """Coefficient of variation of the sizes: 0 when all are equal."""
        mean = float(self.sizes.mean())
        return float(self.sizes.std()) / mean if mean else 0.0

    def summary(self) -> dict[str, float]:
        """Means over the clients that hold data, and the extremes of the sizes."""
        held = self.sizes > 0
        entropy, distance = self.entropy[held], self.distance[held]
        return {
            "clients": float(len(self.sizes)),
            "empty": float((~held).sum()),
            "size_min": float(self.sizes.min()),
            "size_max": float(self.sizes.max()),
            "size_spread": self.size_spread,
            "entropy": float(entropy.mean()) if held.any() else 0.0,
            "distance": float(distance.mean()) if held.any() else 0.0,
        }


def heterogeneity(
    labels: NDArray[Any], parts: Sequence[NDArray[np.int64]], *, ground: Ground = "discrete"
) -> Heterogeneity:
    """Measure a partition.

    >>> labels = np.array([0, 0, 1, 1])
    >>> h = heterogeneity(labels, [np.array([0, 1]), np.array([2, 3])])
    >>> h.entropy.tolist(), h.distance.tolist(), h.size_spread
    ([0.0, 0.0], [0.5, 0.5], 0.0)
    """
    if not len(parts) or not len(labels):
        raise UserError("heterogeneity needs at least one client and one label, but got none.")
    table = label_histograms(labels, parts)
    whole = np.bincount(np.unique(labels, return_inverse=True)[1])
    sizes = table.sum(1)
    return Heterogeneity(sizes, label_entropy(table), wasserstein(table, whole, ground=ground))


def label_histograms(labels: NDArray[Any], parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """How many samples of each class (in sorted order) each client has, [clients, classes]."""
    values, codes = np.unique(labels, return_inverse=True)
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    held = codes[np.concatenate([np.asarray(p, dtype=np.int64) for p in parts])]
    flat = np.bincount(owner * len(values) + held, minlength=len(parts) * len(values))
    return flat.reshape(len(parts), len(values)).astype(np.int64)


def label_entropy(table: NDArray[np.int64]) -> Floats:
    """``-sum_c p_c log p_c`` of each row of a table of counts.

    >>> label_entropy(np.array([[4, 0], [2, 2]])).round(3).tolist()
    [0.0, 0.693]
    """
    p = _shares(table)
    # Zero counts add nothing; the sum is never positive, so abs turns its sign and -0.0.
    entropy: Floats = np.abs((p * np.log(np.where(p > 0, p, 1.0))).sum(1))
    return entropy


def wasserstein(
    table: NDArray[np.int64], whole: NDArray[np.int64], *, ground: Ground = "discrete"
) -> Floats:
    """Wasserstein-1 distance of each row's histogram from that of ``whole``.

    ``ground="discrete"``: any two classes are 1 apart, so the distance is the total variation
    ``0.5 sum_c |p_c - q_c|`` (half the "earth mover's distance" of Zhao et al., Federated Learning
    with Non-IID Data, 2018). ``ground="ordered"``: classes i and j are ``|i - j|`` apart, so it is
    ``sum_c |P_c - Q_c|`` of the cumulative histograms.

    >>> wasserstein(np.array([[0, 0, 1]]), np.array([1, 0, 0]), ground="ordered").tolist()
    [2.0]
    """
    if ground not in ("discrete", "ordered"):
        raise UserError(f"ground must be 'discrete' or 'ordered', not {ground!r}.")
    gap = _shares(table) - _shares(whole[None])
    moved = 0.5 * gap if ground == "discrete" else np.cumsum(gap, 1)
    distance: Floats = np.abs(moved).sum(1)
    return distance


def _shares(table: NDArray[np.int64]) -> Floats:
    totals = table.sum(1, keepdims=True)
    return np.where(totals > 0, table / np.maximum(totals, 1), np.nan)
