"""Bytes that go over the wire: a closed set of values, checked before anything is allocated.

A frame is ``magic | length of the header | header (JSON) | tensors, one after the other``. The
header names the kind of frame, its plain values, the structure of its trees, and type and shape of
every tensor. Nothing in it executes, and no name in it is imported: NamedTuples are looked up in
the vocabulary of the method that both sides have built. A frame never asks for more memory than
it is long, and its length is compared with a bound first.

Frames of version 0.1 have other names in them (:mod:`shoal.core.states`). They are read, so that a
member's memories and a server's greeting last on disk; two sides that run different versions do
not train together, and are told so.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import TreeReader, current, encode_tree, found_name
from shoal.core.tree import Tree
from shoal.methods.method import Method

MAGIC, MAGIC_0_1 = b"SHOAL2", b"SHOAL1"
HEADER_BYTES = 1 << 20
DEPTH, DIMS, LEAVES = 16, 8, 4096
PLACES = 4 * LEAVES  # of the trees of a frame, with places that have no tensor
MOST = 1 << 40  # a shape with a zero in it: nothing is there, but axes beside it multiply
TYPES: dict[str, tuple[torch.dtype, int]] = {
    "f64": (torch.float64, 8),
    "f32": (torch.float32, 4),
    "f16": (torch.float16, 2),
    "bf16": (torch.bfloat16, 2),
    "i64": (torch.int64, 8),
    "i32": (torch.int32, 4),
    "u8": (torch.uint8, 1),
    "bool": (torch.bool, 1),
}
NAMES = {dtype: name for name, (dtype, _) in TYPES.items()}
StateTypes = Mapping[str, type]


class WireError(Exception):
    """Why bytes were refused, in one sentence."""


class Raw(NamedTuple):
    """A frame before its kind is looked at."""

    kind: str
    values: dict[str, Any]
    trees: dict[str, Tree]


def state_types(method: Method) -> dict[str, type]:
    """The NamedTuples that the parts of a method may send, by name."""
    found: dict[str, type] = {}
    modules = {kind.__module__ for part in method.parts for kind in type(part).__mro__}
    for module in sorted(modules):
        for value in vars(sys.modules[module]).values():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                name = found_name(value)
                if name is not None:
                    found[name] = value
    return found


# ---- writing ----
def encode(
    kind: str, values: Mapping[str, Any], trees: Mapping[str, Tree], magic: bytes = MAGIC
) -> bytes:
    """The bytes of a frame.

    >>> decode(encode("k", {"a": 1}, {"t": (torch.ones(2), None)}), 1000).trees["t"]
    (tensor([1., 1.]), None)
    """
    tensors: list[Tensor] = []

    def numbered(tensor: Tensor) -> int:
        tensors.append(tensor)
        return len(tensors) - 1

    try:
        shaped = {name: encode_tree(tree, numbered) for name, tree in trees.items()}
    except (TypeError, UserError) as error:
        raise WireError(f"a tree that cannot be sent: {error}") from None
    described = [[NAMES[t.dtype], list(t.shape)] for t in tensors]
    header = json.dumps(
        {"kind": kind, "values": dict(values), "trees": shaped, "tensors": described},
        allow_nan=False,
        separators=(",", ":"),
    ).encode()
    if len(header) > HEADER_BYTES:
        raise WireError(f"a header of {len(header)} bytes is too long to be sent")
    body = b"".join(_bytes(t) for t in tensors)
    return magic + struct.pack("<I", len(header)) + header + body


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


# ---- reading ----
def decode(blob: bytes, limit: int, types: StateTypes | None = None) -> Raw:
    """The frame in ``blob``, or a :class:`WireError`; nothing else is ever raised."""
    if len(blob) > limit:
        raise WireError(f"{len(blob)} bytes, and at most {limit} are accepted")
    start = len(MAGIC) + 4
    if len(blob) < start or blob[: len(MAGIC)] not in (MAGIC, MAGIC_0_1):
        raise WireError("not a frame of this version")
    (length,) = struct.unpack("<I", blob[len(MAGIC) : start])
    if length > HEADER_BYTES or start + length > len(blob):
        raise WireError("a header that is longer than the frame")
    try:
        text = blob[start : start + length].decode()
        header = json.loads(text, parse_constant=_refused, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise WireError("a header that is no JSON") from None
    if not isinstance(header, dict) or set(header) != {"kind", "values", "trees", "tensors"}:
        raise WireError("a header with other entries than a frame has")
    kind, values, trees = header["kind"], header["values"], header["trees"]
    if not (isinstance(kind, str) and isinstance(values, dict) and isinstance(trees, dict)):
        raise WireError("a header with entries of a wrong kind")
    tensors = _tensors(memoryview(blob)[start + length :], header["tensors"])
    unused = iter(enumerate(tensors))

    def in_order(place: Any) -> Tensor:
        if type(place) is not int:
            raise ValueError("a tree with a node of an unknown kind")
        number, tensor = next(unused, (-1, None))
        if tensor is None or place != number:
            raise ValueError("a tree that names its tensors out of order")
        return tensor

    def agreed(name: str) -> type:
        found = (types or {}).get(current(name))
        if found is None:
            raise ValueError("a tree with a name that the method does not use")
        return found

    reader = TreeReader(in_order, agreed, DEPTH, PLACES)
    try:
        found = {str(name): reader.read(tree) for name, tree in trees.items()}
    except ValueError as error:
        raise WireError(str(error)) from None
    if next(unused, None) is not None:
        raise WireError("tensors that no tree uses")
    return Raw(kind, values, found)


def of_0_1(blob: bytes) -> bool:
    """Whether version 0.1 wrote a frame."""
    return blob[: len(MAGIC_0_1)] == MAGIC_0_1


def _refused(text: str) -> None:
    raise ValueError(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; one that has a name twice means something else to every reader."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def _tensors(body: memoryview, described: Any) -> list[Tensor]:
    """Tensors after the sizes of all of them were checked against the bytes that are there."""
    if not isinstance(described, list) or len(described) > LEAVES:
        raise WireError(f"more than {LEAVES} tensors, or no list of them")
    sizes = [_size(entry) for entry in described]
    if sum(sizes) != len(body):
        raise WireError(f"tensors of {sum(sizes)} bytes in a body of {len(body)}")
    out, begin = [], 0
    for (name, shape), size in zip(described, sizes, strict=True):
        piece = np.frombuffer(body[begin : begin + size], np.uint8).copy()
        out.append(_tensor(piece, TYPES[name][0], shape))
        begin += size
    return out


def _tensor(piece: np.ndarray[Any, Any], dtype: torch.dtype, shape: list[int]) -> Tensor:
    if dtype is torch.bool and piece.size and int(piece.max()) > 1:
        raise WireError("a truth value that is neither 0 nor 1")
    if not piece.size:
        return torch.zeros(shape, dtype=dtype)
    return torch.from_numpy(piece).view(dtype).reshape(shape)


def _size(entry: Any) -> int:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        raise WireError("a tensor without type and shape")
    name, shape = entry
    if name not in TYPES:
        raise WireError(f"a tensor of a type that is not accepted ({name[:20]!r})")
    if not isinstance(shape, list) or len(shape) > DIMS:
        raise WireError(f"a tensor with more than {DIMS} axes")
    if any(type(n) is not int or not 0 <= n < 1 << 40 for n in shape):
        raise WireError("a tensor whose shape has other entries than whole numbers")
    size = math.prod(shape) * TYPES[name][1]
    if not size and math.prod(n for n in shape if n) > MOST:
        raise WireError(f"a tensor without entries of shape {shape}")
    return size
