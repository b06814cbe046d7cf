"""Low-rank adapters (LoRA) on the linear, convolutional and attention layers of any network.

A layer keeps its class, its name and its tensors, which are frozen; beside them it has ``lora_A``
``[r, in]`` and ``lora_B`` ``[out, r]``, and computes with ``W + s B A``, where ``s = alpha / r``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod, sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.errors import UserError, suggestion
from shoal.core.layers.fitting import materialise

Rule = Literal["plain", "ffa", "stack", "svd"]
OF_SERVER = ("stack", "svd")  # rules whose server acts on products, and whose ranks may differ
A, B, SCALE, MERGED = "lora_A", "lora_B", "lora_scale", "lora_merged"


# ---- layers --------------------------------------------------------------------------------------
class Adapted(nn.Module):
    """What an adapted layer has beside its own tensors."""

    weight: Tensor
    lora_A: Tensor  # noqa: N815  (as everybody calls them)
    lora_B: Tensor  # noqa: N815
    lora_scale: Tensor | float
    lora_merged: Tensor | None  # what was merged into the weight (rule stack), else None

    def adapt(self, weight: Tensor, adapters: Adapters) -> None:
        """Add tensors for a weight ``[out, in, ...]``; B is zero, so the layer computes as before.

        A is drawn as a linear layer's weight is.
        """
        out, fan_in, rank = weight.shape[0], prod(weight.shape[1:]), adapters.rank
        bound = 1 / sqrt(fan_in)
        drawn = torch.empty(rank, fan_in, dtype=weight.dtype, device=weight.device)
        self.lora_A = nn.Parameter(drawn.uniform_(-bound, bound), adapters.rule != "ffa")
        self.lora_B = nn.Parameter(weight.new_zeros(out, rank))
        self.lora_merged = None
        if adapters.rule in OF_SERVER:  # a client of a smaller rank has a scale of its own
            self.register_buffer(SCALE, weight.new_full((1,), adapters.scale))
        else:
            self.lora_scale = adapters.scale
        if adapters.rule == "stack":
            del self.lora_merged
            self.register_buffer(MERGED, weight.new_zeros(out, fan_in))

    def change(self) -> Tensor:
        """What the weight is changed by, ``[out, in]``."""
        found = self.lora_scale * (self.lora_B @ self.lora_A)
        return found if self.lora_merged is None else found + self.lora_merged


class _AdaptedLinear(Adapted):
    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.lora_A), self.lora_B) * self.lora_scale
        y: Tensor = super().forward(x) + low
        return y if self.lora_merged is None else y + F.linear(x, self.lora_merged)


class _AdaptedConvolution(Adapted):
    groups: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        convolve: Any = self._conv_forward
        if self.groups > 1 or self.lora_merged is not None:
            return convolve(x, self.weight + self.change().view(self.weight.shape), self.bias)  # type: ignore[no-any-return]
        low = convolve(x, self.lora_A.view(-1, *self.weight.shape[1:]), None)
        low = torch.einsum("or,nr...->no...", self.lora_B, low)
        return convolve(x, self.weight, self.bias) + low * self.lora_scale  # type: ignore[no-any-return]


class _AdaptedAttention(Adapted):
    """The packed projection of queries, keys and values, and through a tensor of its own the one of
    outputs, whose layer torch never calls."""

    in_proj_weight: Tensor
    out_proj: Adapted

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = [(self, "in_proj_weight"), (self.out_proj, "weight")]
        plain = [layer._parameters[name] for layer, name in own]
        try:
            for layer, name in own:
                value = getattr(layer, name)
                layer._parameters[name] = value + layer.change()
            return super().forward(*args, **kwargs)
        finally:
            for (layer, name), value in zip(own, plain, strict=True):
                layer._parameters[name] = value


_KINDS: dict[str, tuple[type[Adapted], tuple[type[nn.Module], ...]]] = {
    "linear": (_AdaptedLinear, (nn.Linear,)),
    "conv": (_AdaptedConvolution, (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    "attention": (_AdaptedAttention, (nn.MultiheadAttention,)),
}


def _kind(layer: nn.Module) -> str | None:
    """linear, conv or attention; None for a layer that cannot have adapters."""
    kind = type(layer)
    if kind is nn.MultiheadAttention and getattr(layer, "in_proj_weight", None) is None:
        return None  # keys or values of other widths have weights of their own
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return "linear"  # its weight is [in, out]
    return next((name for name, (_, kinds) in _KINDS.items() if kind in kinds), None)


def _class_of(kind: Any, mixin: Any) -> Any:
    return type(f"Adapted{kind.__name__}", (mixin, kind), {})


def _attach(layer: nn.Module, kind: str, adapters: Adapters) -> None:
    weight: Tensor = layer.in_proj_weight if kind == "attention" else layer.weight  # type: ignore[assignment]
    if type(layer).__name__ == "Conv1D":
        weight = weight.t()
    if kind == "attention":
        inner: Any = layer.out_proj
        inner.__class__ = _class_of(type(inner), Adapted)
        inner.adapt(inner.weight, adapters)
    layer.__class__ = _class_of(type(layer), _KINDS[kind][0])
    layer.adapt(weight, adapters)  # type: ignore[operator]


# ---- networks ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Adapters:
    """Which layers of a network have adapters.

    ``targets`` are names of layers (with ``*``), or linear, conv and attention; None: all of these.
    ``trained`` are names of tensors that are trained beside them, such as ``head.*``.
    """

    rule: Rule = "plain"
    rank: int = 8  # the largest of any client
    alpha: float = 8.0
    targets: tuple[str, ...] | None = None
    trained: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def put_on(self, module: nn.Module) -> nn.Module:
        """The module itself, with adapters; nothing else of it is trained but ``trained``."""
        if is_peft(module):
            return self._of_peft(module)
        chosen = self._chosen(module)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        for layer, kind in chosen.values():
            _attach(layer, kind, self)
        for layer in module.modules():
            # torch's fused evaluation of a whole block reads the weights of its layers directly
            if isinstance(layer, nn.TransformerEncoderLayer):
                layer.activation_relu_or_gelu = 0
        for name, parameter in module.named_parameters():
            if any(fnmatchcase(name, pattern) for pattern in self.trained):
                parameter.requires_grad_()
        self._check_trained(module)
        return module

    def _chosen(self, module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
        """Layers by name, each with its kind."""
        inner = {
            f"{name}.out_proj".lstrip(".")
            for name, layer in module.named_modules()
            if isinstance(layer, nn.MultiheadAttention)
        }
        known = {
            name: (layer, kind)
            for name, layer in module.named_modules()
            if name not in inner and (kind := _kind(layer)) is not None
        }
        found: dict[str, tuple[nn.Module, str]] = {}
        for target in self.targets if self.targets is not None else tuple(_KINDS):
            own = {n: (at, kind) for n, (at, kind) in known.items() if _named(target, n, kind)}
            if not own and self.targets is not None:
                raise UserError(self._unknown(module, target, list(known)))
            found |= own
        if not found:
            raise UserError(
                "adapters: the network has no linear, convolutional or attention layer to put "
                "adapters on"
            )
        return found

    def _unknown(self, module: nn.Module, target: str, known: list[str]) -> str:
        others = dict(module.named_modules())
        if target in others:
            return (
                f"adapters.targets: layer {target!r} is a {type(others[target]).__name__}; "
                f"adapters go on linear, convolutional and attention layers"
            )
        return (
            f"adapters.targets: the network has no layer {target!r}; "
            f"{suggestion(target, [*_KINDS, *known])}"
        )

    def _check_trained(self, module: nn.Module) -> None:
        names = [name for name, _ in module.named_parameters()]
        for pattern in self.trained:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"adapters.trained: the network has no parameter {pattern!r}; "
                    f"{suggestion(pattern, names)}"
                )

    def _of_peft(self, module: nn.Module) -> nn.Module:
        """Adapters that peft has put there stay as they are; ffa freezes their A."""
        if self.rule in OF_SERVER:
            raise UserError(
                f"adapters.rule: {self.rule} needs adapters of shoal's own, and peft has put some "
                f"on the network already; give the network without them, or write plain or ffa"
            )
        if replace(self, rule="plain") != Adapters():
            raise UserError(
                "adapters: peft has put adapters on the network already, with ranks, alpha and "
                "targets of its own; say these there, and here rule: plain or ffa alone"
            )
        if self.rule == "ffa":
            for name, parameter in module.named_parameters():
                if f".{A}." in name:
                    parameter.requires_grad_(False)
        return module


def is_peft(module: nn.Module) -> bool:
    """Whether peft has put adapters on a network."""
    owners = (owner for layer in module.modules() for owner in type(layer).__mro__)
    return any(owner.__module__.partition(".")[0] == "peft" for owner in owners)


def _named(target: str, name: str, kind: str) -> bool:
    return target == kind or fnmatchcase(name, target) or name.endswith(f".{target}")


@dataclass(frozen=True)
class AdaptedNetwork:
    """Builds a network and puts adapters on it; two that say the same are equal."""

    make: Callable[[], nn.Module]
    adapters: Adapters
    sample: Tensor | None = field(default=None, repr=False, compare=False)  # to size layers

    def __call__(self) -> nn.Module:
        network = self.make()
        materialise(network, self.sample)
        return self.adapters.put_on(network)


# ---- tensors by name -----------------------------------------------------------------------------
def adapted_layers(names: Iterator[str] | tuple[str, ...]) -> list[str]:
    """Names of layers with adapters (with a dot at the end), among names of tensors.

    >>> adapted_layers(("fc.weight", "fc.lora_A", "fc.lora_B", "lora_B"))
    ['fc.', '']
    """
    return [name.removesuffix(B) for name in names if name == B or name.endswith(f".{B}")]


def merged(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the plain network, adapters merged into its weights: ``W + s B A``.

    ``tensors`` are an adapted network's, by name.
    """
    named = [(n, layer) for n, layer in module.named_modules() if isinstance(layer, Adapted)]
    layers = {f"{name}.".lstrip("."): layer for name, layer in named}
    own = (A, B, SCALE, MERGED)
    out = {n: t for n, t in tensors.items() if n.rpartition(".")[2] not in own}
    for prefix, layer in layers.items():
        scale = tensors.get(prefix + SCALE, getattr(layer, SCALE))
        change = scale * (tensors[prefix + B] @ tensors[prefix + A])
        if prefix + MERGED in tensors:
            change = change + tensors[prefix + MERGED]
        name = prefix + ("in_proj_weight" if isinstance(layer, nn.MultiheadAttention) else "weight")
        if type(layer).__name__ == "AdaptedConv1D":
            change = change.t()
        out[name] = tensors[name] + change.view(tensors[name].shape)
    return out
