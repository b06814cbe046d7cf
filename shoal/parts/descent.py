"""Training on the server: seeded noise and Adam on one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal import rng
from shoal.view import ServerView


def source(view: ServerView, *what: int) -> torch.Generator:
    """Random numbers of the server in this round, from the run's seed."""
    key = rng.keys(view.seed, rng.Purpose.PART, view.round, *what)
    return torch.Generator().manual_seed(int(key[0] >> 1))


def normals(like: Tensor, drawn: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers of the type and on the device of ``like``."""
    return torch.randn(*shape, generator=drawn, dtype=like.dtype).to(like.device)


def minimised(
    value: Callable[[Tensor], Tensor],
    start: Tensor,
    iterations: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Tensor:
    """``start`` after some iterations of Adam on ``value``, which draws anew at every call."""
    with torch.enable_grad():
        x = start.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=rate, betas=betas)
        for _ in range(iterations):
            optimizer.zero_grad()
            value(x).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return x.detach()
