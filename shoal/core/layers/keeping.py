"""Tensors of a network that a pure function of its parameters would lose or leak.

A network is trained as a function of one vector: tensors with the names of its parameters take
their places for a pass. What hangs on the parameters themselves, or is kept beside them, would be
left out of it without a word.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shoal.core.errors import UserError

OLD_NORMS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")
Kept = dict[str, tuple[bool, Tensor]]


def check_tensors(what: str, layer: nn.Module, trained: set[int]) -> None:
    """Refuse what a pure function of the parameters would lose; ``trained``: where in memory they
    are, which a view through ``.data`` shares."""
    kept = [(k, v) for k, v in vars(layer).items() if isinstance(v, Tensor)]
    made = [k for k, v in kept if v.requires_grad or _place(v) in trained]
    if made or any(type(h).__module__ in OLD_NORMS for h in layer._forward_pre_hooks.values()):
        raise UserError(
            f"{what} keeps a tensor {made[0] if made else 'weight'!r} that is no parameter, and "
            f"does not follow those that are trained; write nn.Parameter, make it in forward, or "
            f"take weight_norm and spectral_norm of torch.nn.utils.parametrizations"
        )
    for key, tensor in (*layer._parameters.items(), *layer._buffers.items()):
        if tensor is not None and tensor.is_complex():
            raise UserError(
                f"{what} has complex numbers in {key!r}, of which training would lose the "
                f"imaginary part; keep torch.view_as_real of them, and use torch.view_as_complex"
            )
        if tensor is not None and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks):
            raise UserError(
                f"{what} has a hook on the gradient of {key!r}, which would not be called; let "
                f"forward do what it does, or freeze parameters with requires_grad=False"
            )


def check_listed(what: str, layer: nn.Module, known: set[int]) -> None:
    """Refuse layers and parameters in a plain list or dict, which torch does not see; ``known`` are
    the layers that it does."""
    for key, value in vars(layer).items():
        if key.startswith("_") or not isinstance(value, list | tuple | dict):
            continue
        for item in value.values() if isinstance(value, dict) else value:
            hidden = isinstance(item, nn.Module) and id(item) not in known
            if hidden or (isinstance(item, Tensor) and item.requires_grad):
                kind = "Parameter" if isinstance(item, Tensor) else "Module"
                form = "Dict" if isinstance(value, dict) else "List"
                raise UserError(
                    f"{what} keeps {'a tensor' if kind == 'Parameter' else 'layers'} in the plain "
                    f"{form.lower()} {key!r}, where training does not find them; write "
                    f"nn.{kind}{form}"
                )


def trained_places(module: nn.Module) -> set[int]:
    """Where in memory the parameters are that are trained."""
    found = (p for p in module.parameters() if p.requires_grad and not is_lazy(p))
    return {_place(p) for p in found if p.numel()}


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def parameters_of(module: nn.Module) -> Kept:
    """By name: whether it is trained, and its values."""
    return {n: (p.requires_grad, p.detach().clone()) for n, p in module.named_parameters()}


def check_kept(before: Kept, after: Kept) -> None:
    """A pass makes no parameters, and changes none."""
    for name, (asked, value) in after.items():
        if name not in before:
            did = "makes", "make it in __init__, where what is trained is looked up"
        elif before[name][0] is not asked:
            did = "sets requires_grad of", "set it in __init__"
        elif not torch.allclose(before[name][1], value, 0.0, 0.0, equal_nan=True):
            did = "writes over", "compute with a changed copy instead, or write a parametrization"
        else:
            continue
        raise UserError(f"the network's forward {did[0]} parameter {name!r}; {did[1]}")
