"""Batch normalisation as a pure function; networks that cannot be trained as they say are
refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.core.errors import UserError
from shoal.core.rng import draws_globally

# ---- fitting -------------------------------------------------------------------------------------
# Networks that cannot be trained as they say are refused, by the name of the layer.
#
# A module is trained in evaluation mode with parameters as one vector (see
# :mod:`shoal.core.task`). What
# it would do otherwise in its own training mode must not be passed over: drawing random numbers,
# leaving parameters out. Most of it stands in the module; drawing inside of ``forward`` is found by
# one forward pass in training mode that is watched.

ROWS = 2  # of the watched pass: batch normalisation needs two


def check_layers(module: nn.Module) -> None:
    """Refuse layers without sizes, with frozen parameters, or that draw random numbers."""
    if next(module.parameters(), None) is None:
        raise UserError(
            f"the network ({type(module).__name__}) has no parameters: nothing to train"
        )
    for name, layer in module.named_modules():
        own_tensors = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
        if any(map(is_lazy, own_tensors)):
            raise UserError(
                f"{_layer(name, layer)} of the network has no sizes before it has seen a "
                f"sample; write its sizes, as in Linear(64, 10)"
            )
        for own, parameter in layer.named_parameters(recurse=False):
            if not parameter.requires_grad:
                full = f"{name}.{own}".lstrip(".")
                raise UserError(
                    f"parameter {full!r} of the network has requires_grad=False, and every "
                    f"parameter is trained here; make it a buffer (register_buffer), or leave "
                    f"requires_grad as it is"
                )
        own = "p" if isinstance(layer, _DropoutNd) else "dropout"  # of recurrent layers, attention
        rate = getattr(layer, own, 0.0)
        if isinstance(rate, float | int) and rate > 0 and _is_torchs(layer):
            raise _draws(_layer(name, layer))


def lone_layer(module: nn.Module, x: Tensor, outputs: tuple[int, ...]) -> str | None:
    """Look on while a module computes two samples in training mode, and refuse what does not fit.

    Returns where batch normalisation sees a single value per channel if a batch has a single row,
    if it does anywhere: such a batch has no variance.
    """
    x = (x[[0, min(1, len(x) - 1)]] if len(x) else x.new_zeros(ROWS, *x.shape[1:])).cpu()
    like = next(iter(module.parameters()), x)
    if x.is_floating_point() and like.is_floating_point():
        x = x.to(like.dtype)
    found: list[str] = []
    module = module.cpu().train()
    with torch.enable_grad(), _followed(module) as where:
        try:
            with _Watch(where, found):
                result = module(x)
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{where()} of the network cannot compute samples of shape {tuple(x.shape[1:])} "
                f"({type(error).__name__}: {reason})"
            ) from error
    _check_result(result, outputs)
    return found[0] if found else None


def _check_result(result: Any, outputs: tuple[int, ...]) -> None:
    """Logits (``outputs``: the shape of a row's), or a pair of logits and features."""
    pair = isinstance(result, tuple)
    logits = result[0] if pair and len(result) == 2 else result
    if isinstance(logits, Tensor):
        if tuple(logits.shape) == (ROWS, *outputs) and logits.is_floating_point():
            if pair:
                _check_features(result[1])
            if not logits.requires_grad:
                raise UserError(
                    "the network's forward returns logits without a gradient, so nothing would be "
                    "trained; leave out detach() and no_grad() on their way"
                )
            return
        what = f"a {str(logits.dtype)[6:]} tensor of shape {tuple(logits.shape)} for {ROWS} samples"
    elif isinstance(result, Mapping):
        what = f"a {type(result).__name__} with {', '.join(map(repr, result))}"
    else:
        what = f"{len(result)} things" if pair else f"a {type(result).__name__}"
    raise UserError(
        f"the network's forward returns {what}; it must return the logits, a tensor of shape "
        f"(rows, {', '.join(map(str, outputs))}), or the pair (logits, features)"
    )


def _check_features(features: Any) -> None:
    found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if not (isinstance(found, tuple) and len(found) == 2 and found[0] == ROWS):
        raise UserError(
            f"the network's forward returns a pair, which is read as (logits, features), and its "
            f"features are {found} for {ROWS} samples; they must have shape (rows, width): return "
            f"features.flatten(1), or the logits alone"
        )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that draw; notes batch normalisation with one value per channel and row."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler, which takes a second."""
        return False

    def __init__(self, where: Callable[[], str], lone: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where, self._lone = where, lone
        self._others = _states()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own = any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        if own or draws_globally(func, args, kwargs):
            raise _draws(self._where())
        # A layer's, or a functional call's. Of its arguments only ``training`` is a boolean.
        if "batch_norm" in str(func) and any(a is True for a in args) and _is_single(args[0]):
            self._lone.append(self._where())
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if error[0] is None and _states() != self._others:
            raise _draws("forward")


def _states() -> tuple[str, str]:
    """Of the generators that are not torch's."""
    return repr(random.getstate()), repr(np.random.get_state())


@contextmanager
def _followed(module: nn.Module) -> Iterator[Callable[[], str]]:
    """Says which layer is computing."""
    stack: list[tuple[str, nn.Module]] = []
    handles = []

    def enter(name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        stack.append((name, layer))
        x = inputs[0] if inputs else None
        if isinstance(layer, nn.GroupNorm) and isinstance(x, Tensor):
            _check_groups(name, layer, x)

    def leave(*_: Any) -> None:
        stack.pop()

    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(partial(enter, name)))
        handles.append(layer.register_forward_hook(leave))
    try:
        yield lambda: _layer(*stack[-1]) if stack else "forward"
    finally:
        for handle in handles:
            handle.remove()


def _is_single(x: Tensor) -> bool:
    """One value per channel and row."""
    return x.dim() > 1 and x.numel() == x.shape[0] * x.shape[1]


def _check_groups(name: str, layer: nn.GroupNorm, x: Tensor) -> None:
    """Torch refuses a single row in groups of one value, in evaluation too."""
    if x.numel() == x.shape[0] * layer.num_groups:
        raise UserError(
            f"{_layer(name, layer)} of the network normalises groups of a single value, which "
            f"makes 0 of whatever it is; leave it out, or write fewer groups"
        )


def _layer(name: str, layer: nn.Module) -> str:
    """A layer in a sentence; the network itself has no name."""
    kind = type(layer).__name__
    return f"layer {name!r} ({kind})" if name else f"forward of {kind}"


def _is_torchs(layer: nn.Module) -> bool:
    return type(layer).__module__.startswith("torch.")


def _draws(where: str) -> UserError:
    return UserError(
        f"{where} of the network draws random numbers in training, which would differ between "
        f"engines; leave it out (for dropout: p=0)"
    )


# ---- batch norm ----------------------------------------------------------------------------------
# Batch normalisation as a pure function: statistics of the real rows, and new running ones.
#
# torch's layer changes its running statistics inside an operator that does not say so, which a
# recording cannot see, and counts the rows that a short batch is padded with. Here new statistics
# take the place of the old ones in the layer, and padding counts for nothing.


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
