"""How far local models are from each other."""

from __future__ import annotations

from collections.abc import Sequence


def divergence(
    norms: Sequence[float], mean_norm: float, weights: Sequence[float] | None = None
) -> float:
    """``Delta = sum_i w_i |x_i - x|^2``, the mean squared distance of local models to their mean
    ``x = sum_i w_i x_i`` (uniform weights: FedInit's Delta^t).

    All clients start from one received model r and ``d_i = x_i - r``, so with ``d = sum_i w_i d_i``
    ``Delta = sum_i w_i |d_i - d|^2 = sum_i w_i |d_i|^2 - |d|^2``: the norms of the uploads and the
    norm of their mean are enough. ``weights`` sum to 1. Rounding may leave a little below 0; that
    is 0.

    >>> divergence([3.0, 5.0], 3.0)  # (3, 0) and (3, 4): mean (3, 2), squared distances 4 and 4
    8.0
    """
    if not norms:
        return 0.0
    shares = weights if weights is not None else [1.0 / len(norms)] * len(norms)
    square = sum(w * n * n for w, n in zip(shares, norms, strict=True))
    return max(0.0, square - mean_norm * mean_norm)
