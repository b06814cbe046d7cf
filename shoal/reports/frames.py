"""Rounds, clients and comparisons as data frames: pandas if it is there, polars otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.reports.course import part_names
from shoal.reports.records import Record

PLAIN = ("round", "session", "task", "accuracy", "loss", "active", "asked", "steps", "samples",
         "epochs", "bytes_up", "bytes_down", "seconds", "seconds_evaluating",
         "noticed")  # fmt: skip
LIBRARIES = ("pandas", "polars")


def library() -> Any:
    """pandas or polars; both make a frame from a mapping of columns."""
    for name in LIBRARIES:
        if find_spec(name) is not None:
            return import_module(name)
    raise UserError("a frame needs pandas or polars; install one with: pip install 'shoal[frames]'")


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A data frame with these columns."""
    return library().DataFrame(dict(columns))


def rounds_frame(records: Sequence[Record]) -> Any:
    """One row a round: what was measured, what changed, what parts and tasks had to say.

    ``shift`` has the kinds of change (None: none), ``cohort`` and ``rejected`` are counts.
    """
    columns: dict[str, list[Any]] = {name: [r.get(name) for r in records] for name in PLAIN}
    shifts = [r["shift"] for r in records]
    columns["shift"] = [None if s is None else " ".join(s["kinds"]) for s in shifts]
    columns["announced"] = [None if s is None else s["announced"] for s in shifts]
    columns["cohort"] = [len(r["cohort"]) for r in records]
    columns["rejected"] = [len(r["rejected"]) for r in records]
    for key in ("tasks", "metrics"):
        for name in {n: None for r in records for n in r.get(key) or {}}:
            columns[name] = [(r.get(key) or {}).get(name) for r in records]
    for name in part_names(records):
        columns[name] = [r.get(name) for r in records]
    return frame(columns)


def clients_frame(path: Path) -> Any:
    """``clients.parquet``: one row a client and round."""
    import pyarrow.parquet as pq

    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name} yet")
    table = pq.read_table(path)
    return frame({name: table[name].to_numpy() for name in table.column_names})
