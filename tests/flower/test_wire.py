"""The decoder: whatever comes is a frame or a refusal, and costs no more than it is long."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.flower import messages, wire
from shoal.flower.messages import MemberInfo, QuestionReply, Refusal, TrainReply
from shoal.flower.wire import WireError

LIMIT = 1 << 20


class Pair(NamedTuple):
    left: Tensor
    right: Any


WORDS = {f"{Pair.__module__}:{Pair.__qualname__}": Pair}


def done() -> TrainReply:
    payloads = ((Pair(torch.arange(6).reshape(2, 3), None),), (), torch.ones(2, dtype=torch.bool))
    return TrainReply("n", 3, 12.0, 4, 48, 2, 0.5, 1.25, torch.randn(20), torch.zeros(0), payloads)


def test_round_trip_of_every_type() -> None:
    made = [torch.ones(3, 2).to(dtype) for dtype, _ in wire.TYPES.values()]
    tree = (tuple(made), None, (), Pair(torch.tensor(7), (torch.zeros(0, 4),)))
    found = wire.decode(wire.encode("k", {"a": [1, 2]}, {"t": tree}), LIMIT, WORDS)
    assert found.kind == "k" and found.values == {"a": [1, 2]}
    got = found.trees["t"]
    assert isinstance(got[3], Pair) and got[3].right[0].shape == (0, 4) and got[1] is None
    for before, after in zip(made, got[0], strict=True):
        assert before.dtype == after.dtype and torch.equal(before, after)


def test_round_trip_of_frames() -> None:
    for frame in (
        MemberInfo("n", "a", "pem", 3, 1),
        Refusal("n", "why"),
        QuestionReply("n", 1, (torch.ones(1),)),
    ):
        assert type(messages.unpack(messages.pack(frame), LIMIT)) is type(frame)
    back = messages.unpack(messages.pack(done()), LIMIT, WORDS)
    assert isinstance(back, TrainReply) and torch.equal(
        back.payloads[0][0].left, done().payloads[0][0][0]
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "type": ([["object", [1]]], "type that is not accepted"),
    "huge": ([["f32", [1 << 39]]], "in a body of"),
    "product": ([["f32", [1 << 39, 1 << 39, 1 << 39]]], "in a body of"),
    "negative": ([["f32", [-1]]], "whole numbers"),
    "float": ([["f32", [1.5]]], "whole numbers"),
    "axes": ([["f32", [1] * 9]], "axes"),
    "many": ([["f32", [1]]] * 5000, "tensors"),
    "no list": ({"a": 1}, "no list"),
}


def raw(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.MAGIC + struct.pack("<I", len(text)) + text + body


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_that_are_refused(case: str) -> None:
    described, reason = REFUSED[case]
    header = {"kind": "k", "values": {}, "trees": {}, "tensors": described}
    with pytest.raises(WireError, match=reason):
        wire.decode(raw(header), LIMIT)


TREES: dict[str, tuple[Any, str]] = {
    "name": ({"of": "os:system", "items": []}, "does not use"),
    "twice": ([0, 0], "out of order"),
    "unused": ([], "no tree uses"),
    "true": ([True], "unknown kind"),
    "entries": ({"of": next(iter(WORDS)), "items": [0]}, "entries"),
}


@pytest.mark.parametrize("case", TREES)
def test_trees_that_are_refused(case: str) -> None:
    tree, reason = TREES[case]
    header = {"kind": "k", "values": {}, "trees": {"t": tree}, "tensors": [["f32", [1]]]}
    with pytest.raises(WireError, match=reason):
        wire.decode(raw(header, bytes(4)), LIMIT, WORDS)


def test_deep_headers_are_refused() -> None:
    for text in (b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"NaN", b"\xff\xfe"):
        with pytest.raises(WireError):
            wire.decode(raw(text), LIMIT)
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    header = {"kind": "k", "values": {}, "trees": {"t": deep}, "tensors": []}
    with pytest.raises(WireError, match="deeper"):
        wire.decode(raw(header), LIMIT)


def test_length_is_looked_at_first() -> None:
    with pytest.raises(WireError, match="at most 100 are accepted"):
        wire.decode(bytes(101), 100)


def mutated(draw: random.Random, blob: bytes) -> bytes:
    """A frame that somebody has changed: bytes, pieces, lengths, or its header."""
    kind, data = draw.randrange(6), bytearray(blob)
    place = draw.randrange(len(data))
    if kind == 0:
        for _ in range(draw.randrange(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data[place:place] = draw.randbytes(draw.randrange(1, 64))
    elif kind == 3:
        data[6:10] = struct.pack("<I", draw.randrange(1 << 32))
    elif kind == 4:
        del data[place : place + draw.randrange(1, 40)]
    else:  # another number somewhere in the header
        (length,) = struct.unpack("<I", data[6:10])
        text = bytearray(data[10 : 10 + length])
        digits = [i for i, c in enumerate(text) if chr(c).isdigit()]
        text[draw.choice(digits)] = ord(draw.choice('0123456789-.e[{"n'))
        data[10 : 10 + length] = text
    return bytes(data)


def test_ten_thousand_broken_frames() -> None:
    """No crash, no hang, and no memory beyond a small multiple of the frame's own length."""
    draw, refused = random.Random(0), 0
    words = (torch.zeros(40, dtype=torch.uint8),) * 3
    kinds = (done(), messages.MaskKeys("n", 1, *words[:2]), messages.UnmaskReply("n", 1, words))
    wholes = [messages.pack(frame) for frame in kinds]
    tracemalloc.start()
    try:
        for _ in range(10_000):
            blob = mutated(draw, draw.choice(wholes))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                messages.unpack(blob, LIMIT, WORDS)
            except WireError:
                refused += 1
            assert tracemalloc.get_traced_memory()[1] - before < 64 * len(blob) + 65_536
    finally:
        tracemalloc.stop()
    assert refused > 5_000  # a changed byte inside a tensor is no error of form


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400))
def test_any_bytes(blob: bytes) -> None:
    for given_bytes in (blob, wire.MAGIC + blob, raw(blob)):
        with pytest.raises(WireError):
            messages.unpack(given_bytes, LIMIT, WORDS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list("kvtn")), JSON)
def test_headers_of_any_json(place: str, value: Any) -> None:
    header: dict[str, Any] = {"kind": "Done", "values": {}, "trees": {}, "tensors": []}
    header[{"k": "kind", "v": "values", "t": "trees", "n": "tensors"}[place]] = value
    with pytest.raises(WireError):
        messages.unpack(raw(header), LIMIT, WORDS)
