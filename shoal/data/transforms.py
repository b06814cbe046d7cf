"""Changes of inputs that depend on who holds a row or on its class: the biases of FedInit.

The paper (section 5 and appendix B.1) changes the strength of the colour channels by Gaussian
noise of the client's own, and the brightness by Gaussian noise of the class's own; it prints no
magnitudes, so ``sigma`` is ours. Factors and offsets are functions of ``(seed, client)`` and
``(seed, class)``: more clients leave the first ones as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import UserError
from shoal.types import Pool

CLIENT, CLASS = 1, 2


def _noise(seed: int, kind: int, number: int, size: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, kind, number]).standard_normal(size)


def _sigma(sigma: float) -> float:
    if not (np.isfinite(sigma) and sigma >= 0):
        raise UserError(f"sigma must be 0 or more, not {sigma!r}.")
    return float(sigma)


def channel_strength(x: Tensor, client: int, *, sigma: float = 0.1, seed: int = 0) -> Tensor:
    """Channel c of images [N, C, H, W] times ``1 + sigma z_c``, z standard normal by client."""
    if x.dim() != 4:
        raise UserError(
            f"channels need images (channels, height, width), not {tuple(x.shape[1:])}."
        )
    drawn = _noise(seed, CLIENT, client, x.shape[1])
    strength = torch.from_numpy(1.0 + _sigma(sigma) * drawn).to(x)
    return x * strength.view(1, -1, 1, 1)


def brightness(x: Tensor, y: Tensor, *, sigma: float = 0.1, seed: int = 0) -> Tensor:
    """Every value of a row of class c plus ``sigma z_c``, z standard normal by class."""
    return _lit(x, y, _offsets(y, sigma, seed))


def _offsets(y: Tensor, sigma: float, seed: int) -> NDArray[np.float64]:
    """What each class up to the highest of ``y`` gets."""
    if y.dim() != 1 or y.is_floating_point():
        raise UserError("brightness by class needs one class a row.")
    classes = int(y.max()) + 1 if len(y) else 0
    drawn = np.array([_noise(seed, CLASS, c, 1)[0] for c in range(classes)])
    return _sigma(sigma) * drawn


def _lit(x: Tensor, y: Tensor, offsets: NDArray[np.float64]) -> Tensor:
    offset = torch.from_numpy(offsets).to(x)
    return x + offset[y].view(-1, *[1] * (x.dim() - 1))


def biased(
    pool: Pool,
    parts: Sequence[NDArray[np.int64]],
    *,
    client_sigma: float = 0.1,
    class_sigma: float = 0.1,
    seed: int = 0,
    low: float | None = None,
    high: float | None = None,
) -> tuple[Pool, list[NDArray[np.int64]]]:
    """A pool in which every client has rows of its own, with both biases, and the new parts.

    Clients may share rows of ``pool`` (sampling with replacement), so their rows are copied, once.
    Values are clamped to ``low`` and ``high`` where given.
    """
    if not len(parts):
        raise UserError("biased needs at least one client, but got none.")
    ends = np.cumsum([0, *(len(rows) for rows in parts)])
    xs = pool.x.new_empty(int(ends[-1]), *pool.x.shape[1:])
    ys = pool.y.new_empty(int(ends[-1]), *pool.y.shape[1:])
    offsets = _offsets(pool.y, class_sigma, seed) if class_sigma else None
    for client, rows in enumerate(parts):
        at = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(pool.y.device)
        x, y = pool.x[at], pool.y[at]
        x = channel_strength(x, client, sigma=client_sigma, seed=seed) if client_sigma else x
        x = x if offsets is None else _lit(x, y, offsets)
        place = slice(int(ends[client]), int(ends[client + 1]))
        xs[place] = x if low is None and high is None else x.clamp(low, high)
        ys[place] = y
    out = [np.arange(a, b, dtype=np.int64) for a, b in pairwise(ends.tolist())]
    return Pool(xs, ys), out
