"""Reading ``rounds.jsonl`` while somebody may still be writing it. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
