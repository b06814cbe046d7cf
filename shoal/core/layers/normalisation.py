"""Batch normalisation as a pure function; which layers are in training mode.

torch's layer changes its running statistics inside an operator that does not say so, which a
recording cannot see, and counts the rows that a short batch is padded with. Here new statistics
take the place of the old ones in the layer, and padding counts for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def resting(module: nn.Module) -> frozenset[str]:
    """Layers that the user put in evaluation mode, where they stay; by name.

    A network that is in evaluation mode as a whole (as libraries hand out pretrained ones) is one
    to be put in training mode, which its own ``train`` may do with exceptions.
    """
    found = {n for n, layer in module.named_modules() if module.training and not layer.training}
    module.train()
    return frozenset(found | {n for n, layer in module.named_modules() if not layer.training})


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


class _Resting(_BatchNorm):
    """The same in evaluation, always, with statistics that do not move; torch's own operator cannot
    be captured."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None and self.running_var is not None
        scale = torch.rsqrt(self.running_var + self.eps)
        scale = scale * self.weight if self.affine else scale
        shift = -self.running_mean * scale
        shift = shift + self.bias if self.affine else shift
        around = (1, -1, *(1,) * (x.dim() - 2))
        return x * scale.view(around) + shift.view(around)


class _Pure1d(_Pure, nn.BatchNorm1d):
    pass


class _Pure2d(_Pure, nn.BatchNorm2d):
    pass


class _Pure3d(_Pure, nn.BatchNorm3d):
    pass


class _Resting1d(_Resting, nn.BatchNorm1d):
    pass


class _Resting2d(_Resting, nn.BatchNorm2d):
    pass


class _Resting3d(_Resting, nn.BatchNorm3d):
    pass


_PURE: dict[type[nn.Module], tuple[type[_Pure], type[_Resting]]] = {
    nn.BatchNorm1d: (_Pure1d, _Resting1d),
    nn.BatchNorm2d: (_Pure2d, _Resting2d),
    nn.BatchNorm3d: (_Pure3d, _Resting3d),
}


def purify(module: nn.Module, rests: Container[str] = ()) -> bool:
    """Make the batch normalisations of a module pure; parameters and names stay as they are.

    Returns whether there are any that do not rest.
    """
    found = [(name, layer) for name, layer in module.named_modules() if type(layer) in _PURE]
    moves = False
    for name, layer in found:
        still = name in rests and layer.running_mean is not None
        layer.__class__ = _PURE[type(layer)][still]
        moves |= not still
    return moves


def set_modes(module: nn.Module, train: bool, rests: Container[str], draw: bool = True) -> None:
    """Put layers in training or evaluation mode, but for those that rest. Without ``draw``, in
    training only those that keep something: the others draw, or do as in evaluation."""
    for name, layer in module.named_modules():
        mode = train and name not in rests and (draw or bool(layer._buffers))
        if layer.training is not mode:
            layer.training = mode


@contextmanager
def over(module: nn.Module, weight: Tensor | None) -> Iterator[None]:
    """Layers that normalise over a batch take it as its rows with a weight."""
    real = None if weight is None else (weight > 0).to(weight.dtype)
    layers = [layer for layer in module.modules() if isinstance(layer, _Pure)]
    for layer in layers:
        layer.real = real
    try:
        yield
    finally:
        for layer in layers:
            layer.real = None
