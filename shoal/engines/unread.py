"""What Python can do to a tensor without torch's dispatcher being told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Methods that hand out numbers without calling an operator.
_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


class Unread(TorchFunctionMode):
    """Refuses methods that hand out numbers without calling an operator."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _READS:
            raise ValueError(f"it looks at the values of a tensor ({func.__name__})")
        if func is Tensor.__repr__:  # somebody prints what they work with
            return f"tensor(..., size={tuple(args[0].shape)}, dtype={args[0].dtype})"
        if func is F.one_hot and not torch._C._functorch.is_batchedtensor(args[0]):
            return _one_hot(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _one_hot(labels: Tensor, num_classes: int = -1) -> Tensor:
    """Torch's own looks whether all labels are in range."""
    if num_classes < 0:
        return F.one_hot(labels)
    return (labels.unsqueeze(-1) == torch.arange(num_classes)).long()
