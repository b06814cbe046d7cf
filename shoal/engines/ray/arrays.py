"""Tensors as Ray moves them: numpy arrays, which its object store hands out without a copy."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Array:
    """A tensor on its way. Not a tuple, so that a tree sees one leaf."""

    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shard:
    """Rows of a pool under a name: whoever has them already need not fetch them."""

    name: str
    stored: Any  # an ObjectRef


def array(tensor: Tensor) -> Array:
    return Array(tensor.detach().contiguous().numpy())


def tensor(array: Array) -> Tensor:
    """The array as a tensor, without a copy; nobody writes to what an order or a result holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
        return torch.from_numpy(array.values)


class Shards:
    """The driver's side: every client's rows go to the object store once.

    ``most`` bounds the bytes that stay there; the rows of whoever was not seen for longest go.
    """

    def __init__(self, put: Any, most: int = 4 * 2**30) -> None:
        self._put, self._most = put, most
        self._stored: OrderedDict[str, tuple[Shard, int]] = OrderedDict()
        self._pools: dict[int, tuple[ref[Tensor], int]] = {}
        self._bytes = self._serial = 0

    def __call__(self, pool: Tensor, rows: Tensor | None) -> Shard:
        wanted = b"" if rows is None else rows.contiguous().numpy().tobytes()
        name = f"{self._number(pool)}-{blake2b(wanted, digest_size=16).hexdigest()}"
        if name in self._stored:
            self._stored.move_to_end(name)
            return self._stored[name][0]
        sent = array(pool if rows is None else pool.index_select(0, rows))
        shard = Shard(name, self._put(sent))
        self._stored[name] = (shard, sent.values.nbytes)
        self._bytes += sent.values.nbytes
        while self._bytes > self._most and len(self._stored) > 1:
            _, (_, size) = self._stored.popitem(last=False)
            self._bytes -= size
        return shard

    def _number(self, pool: Tensor) -> int:
        known = self._pools.get(id(pool))
        if known is None or known[0]() is not pool:
            self._serial += 1
            self._pools = {k: v for k, v in self._pools.items() if v[0]() is not None}
            known = self._pools[id(pool)] = (ref(pool), self._serial)
        return known[1]


class Held:
    """An actor's side: the shards it has trained on, the latest ``most`` bytes of them."""

    def __init__(self, get: Any, most: int = 2**30) -> None:
        self._get, self._most = get, most
        self._held: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0

    def __call__(self, leaf: object) -> object:
        """A tree's leaf as it was before it travelled."""
        if isinstance(leaf, Array):
            return tensor(leaf)
        return self._shard(leaf) if isinstance(leaf, Shard) else leaf

    def _shard(self, shard: Shard) -> Tensor:
        if shard.name not in self._held:
            self._held[shard.name] = tensor(self._get(shard.stored))
            self._bytes += self._held[shard.name].nbytes
        self._held.move_to_end(shard.name)
        while self._bytes > self._most and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone.nbytes
        return self._held[shard.name]
