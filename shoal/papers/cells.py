"""From a recipe to cells and their figures.

A cell is one combination of axis values: its configs, one per seed, and its printed rows. A result
is one figure of a cell, for every seed whose run is finished, next to the printed one.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

from shoal.config.schema import Config, from_mapping
from shoal.config.version_0_1 import as_named
from shoal.core.errors import MissingDataError, UserError, suggestion
from shoal.core.old_names import renamed, todays_path
from shoal.papers import printed
from shoal.papers.measures import RunFiles, measured
from shoal.papers.recipe import COLUMNS, Call, Figure, Recipe, Value
from shoal.reports.findings import method_name
from shoal.runs.directory import RunDir, diverged


@dataclass(frozen=True)
class Cell:
    """A run's worth of a table: the figures of one combination, for every seed."""

    recipe: Recipe
    point: Mapping[str, str]  # axis -> value
    variant: str
    reduced: bool

    @property
    def where(self) -> dict[str, str]:
        """Axis values and the variant, which conditions speak of."""
        return {**self.point, "variant": self.variant}

    @property
    def columns(self) -> dict[str, str]:
        """The cell's values of the printed file's columns."""
        found = dict(self.recipe.columns)
        for axis, name in self.point.items():
            given = self.recipe.axes[axis][name].columns
            if given is not None:
                found |= given
            elif axis in COLUMNS:
                found[axis] = name
        return found

    @property
    def figures(self) -> list[Figure]:
        return [m for m in self.recipe.measures if self.recipe.matches(m.condition, self.where)]

    def config(self, seed: int) -> Config:
        try:
            values = copy.deepcopy(renamed(self.recipe.base))
            for overrides in self._overrides():
                for key, value in overrides.items():
                    put(values, todays_path(key.split(".")), value)
                    values = renamed(values)
            values["method"] = _composed(values["method"])
            return from_mapping({**values, "seed": seed})
        except UserError as error:
            said = ", ".join(self.point.values())
            raise UserError(f"{self.recipe.source.name}, cell {said}: {error}") from None

    def _overrides(self) -> Iterator[Mapping[str, Any]]:
        recipe = self.recipe
        for axis, name in self.point.items():
            yield recipe.axes[axis][name].set
        yield recipe.variants[self.variant].set
        yield from (w.set for w in recipe.when if recipe.matches(w.condition, self.where))
        if self.reduced and recipe.reduced is not None:
            yield recipe.reduced.set
            later = recipe.reduced.when
            yield from (w.set for w in later if recipe.matches(w.condition, self.where))


def put(values: dict[str, Any], steps: Sequence[str], value: Any) -> None:
    """Write over a dotted key, making mappings on the way.

    >>> values = {"method": {"start": "previous"}}
    >>> put(values, ["method", "start", "previous", "P"], 0)
    >>> values
    {'method': {'start': {'previous': {'P': 0}}}}
    """
    here = values
    for step in steps[:-1]:
        inner = here.get(step)
        if isinstance(inner, str):
            inner = {inner: {}}  # a name without settings
        here[step] = inner = dict(inner) if isinstance(inner, Mapping) else {}
        here = inner
    here[steps[-1]] = copy.deepcopy(value)


def _composed(slots: Mapping[str, Any]) -> list[Any]:
    """The slots that are filled, in order."""
    return [method for method in slots.values() if method is not None]


def cells_of(recipe: Recipe, variant: str = "", reduced: bool = False) -> list[Cell]:
    """Every combination that exists, in the order of the axes."""
    chosen = variant or next(iter(recipe.variants))
    if chosen not in recipe.variants:
        hint = suggestion(chosen, recipe.variants)
        raise UserError(f"{recipe.source.name} has no variant {chosen!r}; {hint}")
    if reduced and recipe.reduced is None:
        raise UserError(f"{recipe.source.name} has no reduced variant")
    only = recipe.reduced.only if reduced and recipe.reduced is not None else {}
    axes: list[list[tuple[str, str]]] = [
        [(axis, name) for name in _kept(axis, values, only)] for axis, values in recipe.axes.items()
    ]
    out = []
    for combination in product(*axes):
        point = dict(combination)
        if not any(recipe.matches(d, {**point, "variant": chosen}) for d in recipe.drop):
            out.append(Cell(recipe, point, chosen, reduced))
    return out


def _kept(axis: str, values: Mapping[str, Value], only: Mapping[str, list[str]]) -> list[str]:
    return [name for name in values if axis not in only or name in only[axis]]


def selected(cells: Iterable[Cell], wanted: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Cells with one of the values wanted of an axis; the axis ``*`` stands for any of them.

    Names are compared without case and punctuation, so ``fashion-mnist`` finds Fashion-MNIST.
    """
    found = list(cells)
    for axis, names in wanted.items():
        plain = {_plain(name) for name in names}
        if not plain:
            continue
        kept = [c for c in found if plain & {_plain(v) for v in _values(c, axis)}]
        if not kept:
            known = dict.fromkeys(v for c in found for v in _values(c, axis))
            said = "column" if axis == "*" else axis
            raise UserError(f"no cell has the {said} {names[0]!r}; {suggestion(names[0], known)}")
        found = kept
    return found


def _values(cell: Cell, axis: str) -> list[str]:
    columns = cell.columns
    if axis == "*":
        return [*cell.point.values(), *columns.values()]
    return [value for value in (cell.point.get(axis), columns.get(axis)) if value]


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum() or c in ".+")


# ---- results -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CellResult:
    """One figure of one cell. ``beside``: it is reported next to the compared one."""

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
        return stdev(self.values.values()) if len(self.values) > 1 else None

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

    def run_files(self, seed: int) -> RunFiles:
        return RunFiles(self.runs[seed])


def run_name(config: Config) -> str:
    """The directory of a config, the same for every cell that shares it.

    What is at its default (of version 0.1, where that was another one) is left out, so that a new
    key or another default of configs renames no run.
    """
    data = config.data.name if config.problem is None else config.problem.name
    shown = "+".join(method_name(config.method).split(" + "))
    plain = "".join(c if c.isalnum() or c in "_+-" else "-" for c in f"{data}-{shown}")
    values = as_named(config)
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return f"{plain}-s{config.seed}-{digest[:10]}"


def results(cells: Iterable[Cell], seeds: Sequence[int] | None, runs: Path) -> list[CellResult]:
    """The figures of every cell, from those of its runs that are finished."""
    return [result for cell in cells for result in _of_cell(cell, seeds, runs)]


def _of_cell(cell: Cell, seeds: Sequence[int] | None, runs: Path) -> Iterator[CellResult]:
    paths = {s: runs / run_name(cell.config(s)) for s in seeds or cell.recipe.seeds}
    done = {s: RunFiles(path) for s, path in paths.items() if RunDir(path).finished}
    ends = {s: diverged(path) for s, path in paths.items() if s not in done}
    ended = {s: round for s, round in ends.items() if round is not None}
    for figure in cell.figures:
        found = [_result(cell, figure, figure.called, figure.measure, done, False)]
        found += [_result(cell, figure, n, call, done, True) for n, call in figure.beside.items()]
        yield from (replace(result, diverged=ended) for result in found)


def _result(
    cell: Cell, figure: Figure, name: str, call: Call, done: Mapping[int, RunFiles], beside: bool
) -> CellResult:
    recipe = cell.recipe
    said = {**cell.columns, **figure.columns}
    compared = not beside and "metric" in figure.columns
    row = printed.find(recipe.paper, recipe.table, said) if compared else None
    found = {seed: _read(call, run) for seed, run in done.items()}
    return CellResult(
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


def _read(call: Call, run: RunFiles) -> float | None:
    """A run's figure; None where it needs data that is not on this machine."""
    try:
        return measured(call, run)
    except MissingDataError:
        return None
