"""The control problem around a mean trajectory, and the pre-training loop printed for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.states import state

Test = Literal["signed", "norm"]


@state("fedagg.trajectory")
class Trajectory(NamedTuple):
    """Mean gradients of epochs 0..L-1 (one gradient or the sum of an epoch's, as the method's scale
    says) and mean models before and after every epoch."""

    phi1: Tensor  # [L, P]
    phi2: Tensor  # [L + 1, P], row 0 is the start


def control_rates(phi1: Tensor, phi2: Tensor, w: Tensor, alpha: float) -> Tensor:
    """Rates that minimise ``sum alpha eta_l^2 + (1-alpha) |w_l - phi2_l|^2`` (FedAgg eq. 15).

    ``phi1`` is ``[L, P]`` (mean gradients of epochs 0..L-1), ``phi2`` is ``[L, P]`` (mean models
    after epochs 1..L); the model dynamics are ``w_{l+1} = w_l - eta_l phi1_l``.

    >>> phi1 = torch.tensor([[0.5, -0.2]], dtype=torch.float64)
    >>> phi2 = torch.tensor([[0.9, 1.0]], dtype=torch.float64)
    >>> rates = control_rates(phi1, phi2, torch.ones(2, dtype=torch.float64), 0.1)
    >>> [round(rate, 9) for rate in rates.tolist()]
    [0.12465374]
    """
    epochs = phi1.shape[0]
    c = (1.0 - alpha) / alpha
    index = torch.arange(epochs, device=phi1.device)
    left = (epochs - torch.maximum(index[:, None], index[None, :])).to(phi1.dtype)
    matrix = torch.eye(epochs, dtype=phi1.dtype, device=phi1.device) + c * left * (phi1 @ phi1.T)
    still_ahead = (index[None, :] >= index[:, None]).to(phi1.dtype)  # epochs that epoch p acts on
    right = c * ((phi1 @ (w - phi2).T) * still_ahead).sum(-1)
    return right / matrix[0] if epochs == 1 else torch.linalg.solve(matrix, right)


def mean_trajectory(answers: Sequence[Trajectory]) -> Trajectory:
    """The plain mean over clients."""
    phi1, phi2 = (torch.stack(leaves).mean(0) for leaves in zip(*answers, strict=True))
    return Trajectory(phi1, phi2)


def summed_gradients(points: Tensor, rates: Tensor) -> Tensor:
    """``[..., L, P]``: the displacement of every epoch divided by its rate, from the models before
    and after each, ``[..., L + 1, P]``: with SGD, the sum of the epoch's mini-batch gradients.

    >>> points = torch.tensor([[1.0], [0.8], [0.7]], dtype=torch.float64)
    >>> summed_gradients(points, torch.tensor([0.1, 0.1])).flatten().round(decimals=6).tolist()
    [2.0, 1.0]
    """
    moved = points[..., :-1, :] - points[..., 1:, :]
    rate = rates.unsqueeze(-1).to(points.dtype)
    still = rate == 0  # who does not move has said nothing about its gradients
    return torch.where(still, torch.zeros_like(moved), moved / torch.where(still, 1.0, rate))


class Swept(NamedTuple):
    """Where the pre-training loop ended: after how many sweeps, and how large its last changes
    were (summed over epochs, as the stop test measures them)."""

    trajectory: Trajectory
    sweeps: int
    change1: float
    change2: float
    met: bool


def sweep(phi: Trajectory, rates: Tensor, gradients: Callable[[Tensor], Tensor]) -> Trajectory:
    """One pass of the loop: everybody walks along ``phi1`` with these rates (eq. 14), from one
    start, so on one path; ``gradients`` gives the clients' mean gradient at each of its points."""
    points = [phi.phi2[0]]
    for rate, direction in zip(rates, phi.phi1, strict=True):
        points.append(points[-1] - rate * direction)
    path = torch.stack(points)
    return Trajectory(gradients(path[:-1]), path)


def pretrained(
    phi: Trajectory,
    gradients: Callable[[Tensor], Tensor],
    alpha: float,
    *,
    tolerance: float = 1e-3,
    most: int = 100,
    test: Test = "signed",
) -> Swept:
    """Algorithm 1 of FedAgg from a first estimate ``phi``.

    ``signed`` is the stop test as printed: signed sums of all changes, and the loop goes on only
    while both are above the tolerance. ``norm`` wants both norms at or below it.

    The rates of ``phi`` at its own start would have to reproduce its path; only zero rates do, so
    every sweep shortens the path:

    >>> start = torch.ones(1, dtype=torch.float64)
    >>> walk = Trajectory(torch.ones(1, 1).double(), torch.tensor([[1.0], [0.95]]).double())
    >>> end = pretrained(walk, lambda points: points, 0.1, test="norm")
    >>> rates = control_rates(end.trajectory.phi1, end.trajectory.phi2[1:], start, 0.1)
    >>> end.met, bool(rates < 0.05)
    (True, True)
    """
    change1 = change2 = float("inf")
    for count in range(1, most + 1):
        rates = control_rates(phi.phi1, phi.phi2[1:], phi.phi2[0], alpha)
        new = sweep(phi, rates, gradients)
        change1, change2 = (_size(a - b, test) for a, b in zip(new, phi, strict=True))
        phi = new
        small = (change1 <= tolerance, change2 <= tolerance)
        if any(small) if test == "signed" else all(small):
            return Swept(phi, count, change1, change2, True)
    return Swept(phi, most, change1, change2, False)


def _size(change: Tensor, test: Test) -> float:
    """Of one mean-field term, summed over epochs."""
    return float(
        change.sum() if test == "signed" else torch.linalg.vector_norm(change, dim=-1).sum()
    )
