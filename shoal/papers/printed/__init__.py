"""Printed figures and claims, and the files that hold them.

One CSV per paper, one row per printed cell; ``claims.yaml`` has every claim that can be tested, how
to decide it and what it costs. They are facts taken from the published papers, in our own words
where there are words; cells that had to be reconstructed say so in the column ``notes``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shoal.core.errors import UserError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One printed cell."""

    columns: Mapping[str, str]
    value: float | None  # None: a dash, or a time
    std: float | None
    unit: str


@cache
def rows(paper: str) -> tuple[Row, ...]:
    """Every printed cell of a paper; none for a paper that we have no file of."""
    path = HERE / f"{paper}.csv"
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(_row(line) for line in csv.DictReader(file))


def _row(line: dict[str, str]) -> Row:
    numbers = [_number(line.pop(name)) for name in ("value", "std")]
    return Row(line, numbers[0], numbers[1], line["unit"])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@cache
def _tables(paper: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows(paper):
        found.setdefault(row.columns["table"], []).append(row)
    return found


def find(paper: str, table: str, columns: Mapping[str, str]) -> Row | None:
    """The one row whose columns are as said; None if nothing of the kind is printed."""
    there = _tables(paper).get(table, ())
    found = [r for r in there if all(r.columns.get(k) == v for k, v in columns.items())]
    if len(found) > 1:
        wanted = {"table": table, **columns}
        said = ", ".join(f"{k} {v}" for k, v in wanted.items())
        raise UserError(f"{len(found)} printed cells of {paper} match {said}; say more columns")
    return found[0] if found else None


@cache
def claims(paper: str = "") -> tuple[dict[str, Any], ...]:
    """The claims of a paper, or all."""
    text = (HERE / "claims.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    return tuple(c for c in found["claims"] if not paper or c["paper"] == paper)
