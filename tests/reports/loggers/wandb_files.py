"""Reads what Weights & Biases wrote offline: records in LevelDB's log format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, PREAMBLE = 32768, 7, 7
FULL, LAST = 1, 4  # kinds of chunk that end a record


def histories(folder: Path) -> list[dict[str, Any]]:
    """The logged rounds of every start, in the order of the starts."""
    files = sorted(folder.glob("offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime_ns)
    return [item for file in files for item in _history(file)]


def _history(file: Path) -> Iterator[dict[str, Any]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for content in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            yield {i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}


def _records(data: bytes) -> Iterator[bytes]:
    position, parts = PREAMBLE, b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        parts += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""
