"""Tensors in files, on their way to disk and back; at most one file's worth is held.

Files are safetensors, told apart by name and checked by SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as dump
from torch import Tensor

from shoal.durable import link, write_bytes
from shoal.store_files import SpillFile


class CorruptError(Exception):
    """What is wrong with one checkpoint."""


class Shards:
    """Tensors on their way to disk; at most one shard of them, ``most`` bytes, is held."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        self._held: dict[str, Any] = {}
        self._bytes = self._count = self._shards = 0
        self._sums: dict[str, str] = {}

    def add(self, leaf: Tensor) -> str:
        """Keep a tensor; the name it can be found under."""
        name = f"t{self._count:07d}"
        self._count += 1
        self._held[name] = leaf.detach().cpu().contiguous().numpy()
        self._bytes += leaf.numel() * leaf.element_size()
        if self._bytes >= self._most:
            self._flush()
        return name

    def link(self, file: SpillFile) -> None:
        """Take in a file of clients' memories as it is; its tensors have names of their own."""
        name = file.path.name
        if name not in self._sums:
            link(file.path, self._folder / name)
            self._sums[name] = file.sha256

    def close(self) -> dict[str, str]:
        self._flush()
        return self._sums

    def _flush(self) -> None:
        if not self._held:
            return
        name, content = f"shard-{self._shards:05d}.safetensors", dump(self._held)
        self._shards += 1
        write_bytes(self._folder / name, content)
        self._sums[name] = sha(content)
        self._held, self._bytes = {}, 0


def finder(folder: Path, shards: dict[str, str], device: str) -> Callable[[str], Tensor]:
    """Finds a tensor by its name. Files are checked now and read when they are asked for, so that
    memories that do not fit into RAM can go back to disk one after another."""
    where: dict[str, Any] = {}
    for name, checksum in shards.items():
        path = folder / name
        try:
            if _file_sha(path) != checksum:
                raise CorruptError(f"has a wrong checksum in {name}")
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError):
            raise CorruptError(f"cannot be read in {name}") from None
        where.update(dict.fromkeys(file.keys(), file))

    def find(name: str) -> Tensor:
        tensor: Tensor = where[name].get_tensor(name)
        return tensor.to(device, copy=True)  # so that no file stays mapped behind it

    return find


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file_sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
