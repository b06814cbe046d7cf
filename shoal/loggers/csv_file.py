"""One CSV file: a row a round, a column a figure."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.loggers.sink import Source
from shoal.rundir import write_text


class CsvFile:
    """``logs/rounds.csv``.

    A figure that appears late (a new task) gets a column of its own: the file is then written
    anew as a whole, with empty cells in the rows before.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.folder / "rounds.csv"
        self._columns = _mended(self.path)

    def next_round(self) -> int:
        rows = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return int(rows[-1].split(",", 1)[0]) + 1 if len(rows) > 1 else 0

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        new = [name for name in ("round", *figures) if name not in self._columns]
        if new:
            self._widen(new)
        row = {"round": round, **{name: format(value, ".12g") for name, value in figures.items()}}
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerow(row)
        with self.path.open("ab") as file:
            file.write(text.getvalue().encode("utf-8"))  # one write: a whole line, or a torn one

    def close(self, finished: bool) -> None:
        """Every row is in the file already."""

    def _widen(self, new: list[str]) -> None:
        rows: list[dict[str, str]] = []
        if self._columns:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self._columns = [*self._columns, *new]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())


def _mended(path: Path) -> list[str]:
    """The columns of a file, after a line that a kill tore is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return next(csv.reader(content[:whole].decode("utf-8").splitlines()), [])
