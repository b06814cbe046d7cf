"""Names and shapes of a network's tensors inside one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The only place that knows parameter names.

    Wide convolution kernels are stored with the channels last, so that a kernel is a channels-last
    view of the flat vector; names and shapes seen from outside are the module's own.

    >>> layout = Layout(("a.weight", "a.bias"), ((2, 3), (2,)))
    >>> layout.size, layout.slices["a.bias"]
    (8, slice(6, 8, None))
    >>> [tuple(t.shape) for t in layout.unflatten(torch.arange(8.0)).values()]
    [(2, 3), (2,)]
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        return cls(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        out, start = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            out[name] = slice(start, start + size)
            start += size
        return out

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of ``vector`` by name. One split, so that its gradient is one concatenation."""
        if not self.names:
            return {}
        blocks = torch.split_with_sizes(vector, list(self.sizes), dim=-1)
        return {
            name: _shaped(block, shape)
            for name, shape, block in zip(self.names, self.shapes, blocks, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One vector from tensors by name; raises KeyError for a missing name."""
        if not self.names:
            return torch.zeros(0)
        return torch.cat([_stored(tensors[name]).reshape(-1) for name in self.names])

    def mask(self, chosen: Callable[[str], bool] | Iterable[str]) -> Tensor:
        """Boolean vector, true where the tensor's name is chosen (by predicate or prefix)."""
        if callable(chosen):
            wanted = chosen
        else:
            prefixes = tuple(chosen)

            def wanted(name: str) -> bool:
                return name.startswith(prefixes)

        out = torch.zeros(self.size, dtype=torch.bool)
        for name, where in self.slices.items():
            out[where] = wanted(name)
        return out


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Which kernels are stored channels-last: those that gain by it.

    Narrow ones stay plain: torch writes beyond its buffers in a strided 1x1 convolution of 4
    channels-last channels, so no such activation may ever arise. Each version that was tried does
    (2.6, 2.8, 2.10, 2.13, 2.15), with oneDNN's kernels for AVX2, not with those for AVX-512;
    ``ONEDNN_MAX_CPU_ISA=AVX2`` shows it on either processor.
    """
    if len(shape) != 4:
        return False
    out, channels, height, width = shape
    return out >= 8 and (channels >= 8 or height * width > 1)


def _stored(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 2, 3, 1) if _channels_last(tuple(tensor.shape)) else tensor


def _shaped(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not _channels_last(shape):
        return block.view(shape)
    out, channels, height, width = shape
    return block.view(out, height, width, channels).permute(0, 3, 1, 2)
