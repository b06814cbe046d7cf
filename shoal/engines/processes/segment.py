"""Memory that a process and the workers it forks share.

A segment is a file that never had a name: no path is left behind whoever dies, and the kernel
takes the memory back with the last process that has it open.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 64  # bytes; a cache line


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a tensor stands: what travels instead of it."""

    segment: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Segment:
    """Grows as its writer needs; a reader maps again what it finds grown."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._fd = _nameless_file()
        self._map: mmap.mmap | None = None
        self._next = 0

    def clear(self) -> None:
        """Write from the beginning again. Tensors read before are overwritten."""
        self._next = 0

    def put(self, tensor: Tensor) -> Ref:
        ref = Ref(self.number, self._next, tuple(tensor.shape), tensor.dtype)
        size = tensor.numel() * tensor.element_size()
        self._next += -(-size // ALIGNED) * ALIGNED
        if size:
            if self._map is None or self._next > len(self._map):
                # pages are only taken when they are written to, so half as much again is free
                os.ftruncate(self._fd, max(self._next * 3 // 2, mmap.PAGESIZE))
                self._remap()
            self.get(ref).copy_(tensor)
        return ref

    def get(self, ref: Ref) -> Tensor:
        """The tensor at ``ref``, without a copy."""
        count = 1
        for length in ref.shape:
            count *= length
        if count == 0:
            return torch.empty(ref.shape, dtype=ref.dtype)
        if self._map is None or ref.offset + count * ref.dtype.itemsize > len(self._map):
            self._remap()
        assert self._map is not None
        # the tensor keeps the mapping alive, so an outgrown one goes when nobody looks at it
        found = torch.frombuffer(self._map, dtype=ref.dtype, count=count, offset=ref.offset)
        return found.view(ref.shape)

    def _remap(self) -> None:
        self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)

    def close(self) -> None:
        self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("shoal")
    with tempfile.TemporaryFile() as file:  # has lost its name already
        return os.dup(file.fileno())
