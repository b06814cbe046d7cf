"""Batch normalisation as a pure function: statistics of the real rows, and new running ones.

torch's layer changes its running statistics inside an operator that does not say so, which a
recording cannot see, and counts the rows that a short batch is padded with. Here new statistics
take the place of the old ones in the layer, and padding counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Pure(_BatchNorm):
    """``y = (x - m) / sqrt(v + eps) * weight + bias`` with mean ``m`` and variance ``v`` over the
    batch, or the running ones outside of training.

    Running statistics move as torch's: ``r <- (1 - momentum) r + momentum s``, the variance by
    ``n - 1``. ``real`` is 1 for rows of the batch and 0 for padding; None: all are rows.
    """

    real: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        y, mean, unbiased = self._whole(x) if self.real is None else self._masked(x)
        if self.running_mean is not None and self.running_var is not None:
            assert self.momentum is not None, "layers without a momentum are refused"
            self.running_mean = torch.lerp(self.running_mean, mean.detach(), self.momentum)
            self.running_var = torch.lerp(self.running_var, unbiased.detach(), self.momentum)
        return y

    def _whole(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """torch's own operator, which hands out the statistics that it took."""
        count = x.numel() // x.shape[1]
        if count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {x.shape}"
            )
        y, mean, inverse = torch.native_batch_norm(
            x, self.weight, self.bias, None, None, True, 0.0, self.eps
        )
        # it says 1 / sqrt(v + eps); rounding may take a v of zero below it
        variance = (inverse.detach().square().reciprocal() - self.eps).clamp_min(0)
        return y, mean, variance * (count / (count - 1))

    def _masked(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.real is not None
        axes, ones = (0, *range(2, x.dim())), (1,) * (x.dim() - 2)
        rows = self.real.view(-1, 1, *ones)
        count = self.real.sum() * (x.numel() // (x.shape[0] * x.shape[1]))
        many = count.clamp_min(1)
        mean = (x * rows).sum(axes) / many
        apart = x - mean.view(1, -1, *ones)
        variance = (apart.square() * rows).sum(axes) / many
        y = apart * torch.rsqrt(variance + self.eps).view(1, -1, *ones)
        if self.weight is not None:
            y = y * self.weight.view(1, -1, *ones) + self.bias.view(1, -1, *ones)
        return y, mean, variance * (count / (count - 1).clamp_min(1))


class _Pure1d(_Pure, nn.BatchNorm1d):
    pass


class _Pure2d(_Pure, nn.BatchNorm2d):
    pass


class _Pure3d(_Pure, nn.BatchNorm3d):
    pass


_PURE: dict[type[nn.Module], type[_Pure]] = {
    nn.BatchNorm1d: _Pure1d,
    nn.BatchNorm2d: _Pure2d,
    nn.BatchNorm3d: _Pure3d,
}


def purify(module: nn.Module) -> bool:
    """Make the batch normalisations of a module pure; parameters and names stay as they are.

    Returns whether there are any.
    """
    found = [layer for layer in module.modules() if type(layer) in _PURE]
    for layer in found:
        layer.__class__ = _PURE[type(layer)]
    return bool(found)


@contextmanager
def over(module: nn.Module, weight: Tensor | None, train: bool) -> Iterator[None]:
    """Layers that keep statistics take them of the rows with a weight, and move them in training.

    All other layers stay as they are.
    """
    _set(module, train, None if weight is None else (weight > 0).to(weight.dtype))
    try:
        yield
    finally:
        _set(module, False, None)


def _set(module: nn.Module, train: bool, real: Tensor | None) -> None:
    for layer in module.modules():
        if isinstance(layer, _Pure):
            layer.real = real
        if layer._buffers:
            layer.training = train


__all__ = ["over", "purify"]
