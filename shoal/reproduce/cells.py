"""From a recipe to cells: one combination of axis values, its configs, its printed rows."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shoal.config.config import Config, from_mapping
from shoal.errors import UserError, suggestion
from shoal.reproduce.recipe import COLUMNS, Figure, Recipe, Value


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
        """What is said of the cell in terms of the printed file's columns."""
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
        values = copy.deepcopy(self.recipe.base)
        for overrides in self._overrides():
            for key, value in overrides.items():
                put(values, key.split("."), value)
        values["method"] = _composed(values["method"])
        try:
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
