"""Networks that cannot be trained as they say are refused, by the name of the layer.

A module is trained in evaluation mode with parameters as one vector (see :mod:`shoal.task`). What
it would do otherwise in its own training mode must not be passed over: drawing random numbers,
leaving parameters out. Most of it stands in the module; drawing inside of ``forward`` is found by
one forward pass in training mode that is watched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.errors import UserError
from shoal.seeded import draws_globally

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


def lone_layer(module: nn.Module, x: Tensor, classes: int) -> str | None:
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
    _check_result(result, classes)
    return found[0] if found else None


def _check_result(result: Any, classes: int) -> None:
    """Logits, or a pair of logits and features."""
    pair = isinstance(result, tuple)
    logits = result[0] if pair and len(result) == 2 else result
    if isinstance(logits, Tensor):
        if tuple(logits.shape) == (ROWS, classes) and logits.is_floating_point():
            _check_features(result[1] if pair else logits)
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
        f"(rows, {classes}), or the pair (logits, features)"
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


__all__ = ["check_layers", "lone_layer"]
