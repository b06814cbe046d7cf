"""How far local models are from the new global model, and from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor


def divergence(squares: float, ways: Tensor, count: int, step: Tensor) -> float:
    """``(1/m) sum_i |x_i - w|^2`` from sums over the clients, so that nothing holds their models.

    Every client received r: ``ways`` is ``sum_i (x_i - r)``, ``squares`` is ``sum_i |x_i - r|^2``,
    and ``step`` is ``w - r``, the way of the global model. The mean distance is the spread of the
    local models around their mean, and the distance of that mean from the global model. Rounding
    may leave the spread a little below 0; that is 0.

    >>> import torch
    >>> ways = torch.tensor([[3.0, 0.0], [3.0, 4.0]])  # their mean is (3, 2)
    >>> divergence(34.0, ways.sum(0), 2, torch.tensor([3.0, 2.0]))
    4.0
    >>> divergence(34.0, ways.sum(0), 2, torch.tensor([0.0, 0.0]))
    17.0
    """
    mean = ways.double() / count
    spread = squares / count - float(mean.square().sum())
    return max(0.0, spread) + float((mean - step.double()).square().sum())


def mean_distance(models: Iterable[Tensor], theta: Tensor) -> float:
    """``(1/N) sum_i |z_i - w|^2``, one model after another.

    >>> import torch
    >>> mean_distance([torch.tensor([1.0]), torch.tensor([4.0])], torch.tensor([2.0]))
    2.5
    """
    found = [float((model.double() - theta.double()).square().sum()) for model in models]
    return sum(found) / len(found)


def upload_spread(norms: Sequence[float], mean_norm: float, weights: Sequence[float]) -> float:
    """``sum_i w_i |d_i - d|^2``, the mean squared distance of uploads to ``d = sum_i w_i d_i``.

    It is ``sum_i w_i |d_i|^2 - |d|^2``: the norms of the uploads and the norm of their mean are
    enough. ``weights`` sum to 1. Rounding may leave a little below 0; that is 0.

    >>> upload_spread([3.0, 5.0], 3.0, [0.5, 0.5])
    8.0
    """
    square = sum(w * n * n for w, n in zip(weights, norms, strict=True))
    return max(0.0, square - mean_norm * mean_norm)
