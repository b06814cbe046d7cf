"""Data by client as TensorFlow Federated publishes it: SQLite with serialised examples.

The table ``examples`` has the columns ``split_name``, ``client_id`` and
``serialized_example_proto``; the last is a ``tf.train.Example``, read here without TensorFlow.
"""

from __future__ import annotations

import lzma
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.untrusted import within

Feature = list[Any]


def unpacked(path: Path) -> Path:
    """The ``.sqlite`` beside a ``.sqlite.lzma``, unpacked once."""
    if path.suffix != ".lzma":
        return path
    target = path.with_suffix("")
    if not target.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{target.name}.")
        try:
            packed = path.stat().st_size
            with os.fdopen(handle, "wb") as out, within(lzma.open(path), packed, path) as whole:
                shutil.copyfileobj(whole, out, 1 << 20)
            os.replace(temporary, target)
        except (lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path} cannot be unpacked ({error}); fetch it again.") from None
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def clients(path: Path, split: str, count: int | None = None) -> list[str]:
    """The first ``count`` clients of a split, in the order of their names."""
    query = "SELECT DISTINCT client_id FROM examples WHERE split_name = ? ORDER BY client_id"
    with closing(_open(path)) as file:
        found = [row[0] for row in file.execute(query, (split,))]
    return found if count is None else found[:count]


def examples(path: Path, split: str, client: str) -> Iterator[dict[str, Feature]]:
    """What a client has in a split."""
    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
        "ORDER BY rowid"
    )
    with closing(_open(path)) as file:
        for (blob,) in file.execute(query, (split, client)):
            yield example(bytes(blob))


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def example(blob: bytes) -> dict[str, Feature]:
    """The features of a serialised ``tf.train.Example``.

    Example { Features features = 1 }; Features { map<string, Feature> feature = 1 };
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each list { value = 1 }.
    """
    found: dict[str, Feature] = {}
    for _, features in _fields(blob):
        for _, entry in _fields(features):
            pair = dict(_fields(entry))
            found[pair[1].decode()] = _values(pair.get(2, b""))
    return found


def _values(feature: bytes) -> Feature:
    out: Feature = []
    for kind, listed in _fields(feature):
        for _, value in _fields(listed):
            if kind == 1:
                out.append(value)
            elif kind == 2:
                out += struct.unpack(f"<{len(value) // 4}f", value)
            else:
                out += _varints(value)
    return out


def _fields(blob: bytes) -> Iterator[tuple[int, bytes]]:
    """Field numbers and raw contents; numbers that stand alone come as their bytes."""
    at = 0
    while at < len(blob):
        key, at = _varint(blob, at)
        start = at
        if key & 7 == 2:
            size, start = _varint(blob, at)
            at = start + size
        elif key & 7 == 5:
            at += 4
        elif key & 7 == 0:
            _, at = _varint(blob, at)
        else:
            raise UserError("a serialised example has a field of an unknown kind.")
        yield key >> 3, blob[start:at]


def _varint(blob: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = blob[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varints(blob: bytes) -> Iterator[int]:
    at = 0
    while at < len(blob):
        value, at = _varint(blob, at)
        yield value - (1 << 64) if value >> 63 else value
