"""The one reader of ``rounds.jsonl``, also while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# ---- records -------------------------------------------------------------------------------------
# Reading ``rounds.jsonl`` while somebody may still be writing it. Needs no torch.

Record = dict[str, Any]


def read_records(path: Path, offset: int = 0) -> tuple[list[Record], int]:
    """The complete lines from byte ``offset`` on, and the offset to go on from.

    A line that is cut off, or is no JSON, ends the reading: the next call tries it again. A file
    that has become shorter than ``offset`` (a run was resumed) is read from its beginning.
    """
    if not path.exists():
        return [], 0
    found: list[Record] = []
    with path.open("rb") as file:
        if path.stat().st_size < offset:
            offset = 0
        file.seek(offset)
        for line in file:
            record = _parsed(line)
            if record is None:
                break
            found.append(record)
            offset += len(line)
    return found, offset


def _parsed(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "round" in record else None


# ---- tail ----------------------------------------------------------------------------------------
# The end of ``rounds.jsonl``, and all of it piece by piece, while a run writes or is cut back.

PIECE = 32_768  # bytes that are read from the end first


def last_records(path: Path, most: int = 8) -> list[Record]:
    """The last complete rounds, without reading what stands before them: at most so many, and fewer
    where the last ``PIECE`` bytes hold fewer."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            piece = min(PIECE, size)
            while True:
                file.seek(size - piece)
                lines = file.read(piece).split(b"\n")
                # what follows the last newline is still being written
                whole = lines[:-1] if piece == size else lines[1:-1]
                if whole or piece == size:
                    return [r for r in map(_record, whole[-most:]) if r is not None]
                piece = min(2 * piece, size)
    except OSError:
        return []


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("round"), int) else None


class GrowingRecords:
    """All rounds of one run so far; each call of :meth:`read` takes in what is new.

    Resuming cuts the file back and writes the rounds again, which may happen between two looks
    and leave a longer file than before. So what was read last must still stand where it stood;
    if it does not, the file is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        self._offset = 0
        self._mark = b""  # the bytes just before the offset

    def read(self) -> list[Record]:
        if not self._unchanged():
            self.records, self._offset = [], 0
        found, self._offset = read_records(self.path, self._offset)
        self.records = self.records + found  # a new list: readers keep the one they have
        self._mark = self._before(self._offset)
        return self.records

    def _unchanged(self) -> bool:
        return self._before(self._offset) == self._mark

    def _before(self, offset: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, offset - PIECE))
                return file.read(min(PIECE, offset))
        except OSError:
            return b""


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """The records of ``rounds.jsonl``; a line that was cut off by a kill is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
