"""What runs say of cells: our figures for every seed, beside the printed ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.config.config import Config
from shoal.errors import MissingDataError
from shoal.reports.runs import method_name
from shoal.reproduce import printed
from shoal.reproduce.cells import Cell
from shoal.reproduce.diverged import diverged
from shoal.reproduce.measures import Reading, measured
from shoal.reproduce.recipe import Call, Figure
from shoal.rundir import RunDir


@dataclass(frozen=True)
class Result:
    """One figure of one cell. ``beside`` says whether it stands next to the compared one."""

    paper: str
    table: str
    columns: Mapping[str, str]  # axis values and printed columns
    name: str
    variant: str
    reduced: bool
    printed: float | None
    printed_std: float | None
    unit: str
    values: Mapping[int, float]  # by seed
    runs: Mapping[int, Path]  # finished runs, by seed
    beside: bool = False
    axes: Sequence[str] = field(default=())
    diverged: Mapping[int, int] = field(default_factory=dict)  # by seed: the round that ended it

    @property
    def mean(self) -> float | None:
        return sum(self.values.values()) / len(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds."""
        if self.mean is None or len(self.values) < 2:
            return None
        squares = sum((v - self.mean) ** 2 for v in self.values.values())
        return math.sqrt(squares / (len(self.values) - 1))

    @property
    def difference(self) -> float | None:
        known = self.mean is not None and self.printed is not None
        return self.mean - self.printed if known else None  # type: ignore[operator]

    @property
    def dataset(self) -> str:
        return self.columns.get("dataset", "")

    @property
    def method(self) -> str:
        return self.columns.get("method", "")

    @property
    def axis_place(self) -> str:
        """The axis values but for the data set and the method."""
        return ", ".join(self.columns[a] for a in self.axes if a not in ("dataset", "method"))

    @property
    def place(self) -> str:
        """Everything about the cell but its data set, method, metric and variant."""
        said = [self.columns[a] for a in self.axes if a not in ("dataset", "method")]
        scenario = self.columns.get("scenario", "")
        said += [scenario] if scenario and scenario not in ("none", *said) else []
        return ", ".join(said)

    @property
    def setting(self) -> str:
        """The place, and which variant it is."""
        kind = f"{self.variant}, reduced" if self.reduced else self.variant
        return f"{self.place}, {kind}" if self.place else kind

    def reading(self, seed: int) -> Reading:
        return Reading(self.runs[seed])


def run_name(config: Config) -> str:
    """The directory of a config, the same for every cell that shares it.

    What is at its default is left out, so that a new key of configs renames no run.
    """
    data = config.data.name if config.problem is None else config.problem.name
    shown = "+".join(method_name(config.method).split(" + "))
    plain = "".join(c if c.isalnum() or c in "_+-" else "-" for c in f"{data}-{shown}")
    values = _named(config)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return f"{plain}-s{config.seed}-{digest[:10]}"


def _named(config: Config) -> dict[str, Any]:
    """What names a run. Of ``evaluate.held_out``, null names nothing (runs of version 0.1 had no
    such key), and every share does where it decides which rows are trained on."""
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    rules = {k: v for k, v in values.pop("evaluate", {}).items() if k != "held_out"}
    if config.evaluate.of_members and config.evaluate.held_out is not None:
        rules["held_out"] = config.evaluate.held_out
    return {**values, "evaluate": rules} if rules else values


def results(cells: Iterable[Cell], seeds: Sequence[int] | None, runs: Path) -> list[Result]:
    """The figures of every cell, from those of its runs that are finished."""
    return [result for cell in cells for result in _of_cell(cell, seeds, runs)]


def _of_cell(cell: Cell, seeds: Sequence[int] | None, runs: Path) -> Iterator[Result]:
    paths = {s: runs / run_name(cell.config(s)) for s in seeds or cell.recipe.seeds}
    done = {s: Reading(path) for s, path in paths.items() if RunDir(path).finished}
    ends = {s: diverged(path) for s, path in paths.items() if s not in done}
    apart = {s: round for s, round in ends.items() if round is not None}
    for figure in cell.figures:
        found = [_result(cell, figure, figure.called, figure.measure, done, False)]
        found += [_result(cell, figure, n, call, done, True) for n, call in figure.beside.items()]
        yield from (replace(result, diverged=apart) for result in found)


def _result(
    cell: Cell, figure: Figure, name: str, call: Call, done: Mapping[int, Reading], beside: bool
) -> Result:
    recipe = cell.recipe
    said = {**cell.columns, **figure.columns}
    compared = not beside and "metric" in figure.columns
    row = printed.find(recipe.paper, recipe.table, said) if compared else None
    found = {seed: _read(call, run) for seed, run in done.items()}
    return Result(
        recipe.paper,
        recipe.table,
        {**said, **cell.point},
        name,
        cell.variant,
        cell.reduced,
        row.value if row else None,
        row.std if row else None,
        row.unit if row else "%",
        {seed: value for seed, value in found.items() if value is not None},
        {seed: run.path for seed, run in done.items()},
        beside,
        tuple(cell.point),
    )


def _read(call: Call, run: Reading) -> float | None:
    """A run's figure; None where it needs data that is not on this machine."""
    try:
        return measured(call, run)
    except MissingDataError:
        return None
