"""Numbers that are the same round after round, as tensors."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(64)
def known(
    numbers: float | tuple[float, ...], dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """A tensor that nobody writes to: it may be somebody else's, too.

    >>> known((1, 2), torch.float32) is known((1, 2), torch.float32)
    True
    """
    with torch.inference_mode(False):  # one that any other mode can use
        return torch.tensor(numbers, dtype=dtype, device=device)
