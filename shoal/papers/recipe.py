"""What a recipe may say, and where recipes are. Descriptions complete "must be ...".

`docs/recipes.md` explains the format. Recipes are inside the installed package, beside it in a
checkout, or at a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import shoal
from shoal.config.messages import Path as KeyPath
from shoal.config.messages import translated
from shoal.config.read import read
from shoal.core.errors import UserError, suggestion
from shoal.core.old_names import renamed

COLUMNS = (
    "dataset", "model", "num_clients", "participation", "partition", "overlap", "scenario",
    "base_algorithm", "method", "metric",
)  # fmt: skip
Overrides = dict[str, Any]
Condition = dict[str, str | list[str]]


class RecipeModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Value(RecipeModel):
    """One value of an axis."""

    set: Overrides = Field(default={}, description="dotted keys of the config and their values")
    columns: dict[str, str] | None = Field(
        default=None, description="columns of the printed file and their texts"
    )


class When(RecipeModel):
    """Overrides for some combinations."""

    condition: Condition = Field(alias="if", description="axes and their values")
    set: Overrides = Field(description="dotted keys of the config and their values")


class Variant(RecipeModel):
    about: str = Field(description="a sentence")
    set: Overrides = Field(default={}, description="dotted keys of the config and their values")


class Reduced(RecipeModel):
    about: str = Field(description="a sentence that says what was reduced")
    set: Overrides = Field(default={}, description="dotted keys of the config and their values")
    only: dict[str, list[str]] = Field(default={}, description="axes and the values that stay")
    when: list[When] = Field(default=[], description="a list of {if, set}")


Call = str | dict[str, dict[str, Any] | None]


class Figure(RecipeModel):
    """What is read from a run, and which printed row it belongs to."""

    measure: Call = Field(description="a measure's name, or {name: {option: value}}")
    name: str = Field(default="", description="what the figure is called")
    columns: dict[str, str] = Field(
        default={}, description="columns of the printed file and their texts"
    )
    condition: Condition = Field(default={}, alias="if", description="axes and their values")
    beside: dict[str, Call] = Field(
        default={}, description="names of further figures, and their measures"
    )

    @property
    def called(self) -> str:
        return self.name or self.columns.get("metric", "") or call_of(self.measure)[0]


class Recipe(RecipeModel):
    """A table of a paper, or a set of cells that no table has."""

    format: Literal[1] = Field(default=1, description="1, the format this version reads")
    paper: str = Field(description="the short name of a paper")
    table: str = Field(description="the table as printed, such as Table 3")
    caption: str = Field(default="", description="one line")
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1, description="a list of seeds")
    columns: dict[str, str] = Field(
        default={}, description="columns of the printed file and their texts"
    )
    base: dict[str, Any] = Field(description="a config")
    axes: dict[str, dict[str, Value]] = Field(description="axes, their values, and what they set")
    drop: list[Condition] = Field(default=[], description="a list of combinations")
    variants: dict[str, Variant] = Field(
        default={"paper": Variant(about="as the paper's text has it")},
        min_length=1,
        description="variants, each with a sentence about it",
    )
    when: list[When] = Field(default=[], description="a list of {if, set}")
    measures: list[Figure] = Field(min_length=1, description="a list of measures")
    reduced: Reduced | None = Field(default=None, description="{about, set, only, when}")
    source: Path = Field(default=Path(), exclude=True, description="a path")

    @field_validator("axes", mode="before")
    @classmethod
    def _plain_values(cls, axes: Any) -> Any:
        """A value that sets nothing may be left empty."""
        if not isinstance(axes, Mapping):
            return axes
        return {
            axis: {str(name): {} if value is None else value for name, value in values.items()}
            if isinstance(values, Mapping)
            else values
            for axis, values in axes.items()
        }

    def matches(self, condition: Condition, point: Mapping[str, str]) -> bool:
        """Whether a combination of axis values (and a variant) meets a condition."""
        return all(
            point.get(axis) in (wanted if isinstance(wanted, list) else [wanted])
            for axis, wanted in condition.items()
        )


def call_of(call: Call) -> tuple[str, dict[str, Any]]:
    """The name of a measure and its options."""
    if isinstance(call, str):
        return call, {}
    name, options = next(iter(call.items()))
    return name, dict(options or {})


def load_recipe(path: Path) -> Recipe:
    """A checked recipe; every complaint names the file and, where it can, the line."""
    values, lines = _extended(path)

    def place(key: KeyPath) -> str:
        line = lines.get(key)
        return f"{path.name}, line {line}: " if line else f"{path.name}: "

    try:
        recipe = Recipe.model_validate({**values, "source": path})
    except ValidationError as error:
        raise translated(error, Recipe, place) from None
    _check_names(recipe, path.name)
    return recipe


def _extended(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    values, lines = read(path)
    if isinstance(values.get("base"), Mapping):
        values["base"] = renamed(values["base"])  # before it is laid over another file's
    parent = values.pop("extends", None)
    if parent is None:
        return values, lines
    if not isinstance(parent, str) or not (path.parent / parent).is_file():
        raise UserError(f"{path.name}: extends names {parent!r}, which is no file beside it")
    if (path.parent / parent).resolve() == path.resolve():
        raise UserError(f"{path.name}: extends names the file itself")
    return laid_over(_extended(path.parent / parent)[0], values), lines


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, mapping by mapping; null takes a key out, ``set`` is replaced.

    >>> laid_over({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": None, "e": 5}})
    {'a': {'b': 1, 'e': 5}, 'd': 3}
    """
    out = dict(below)
    for key, value in above.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping) and key != "set":
            out[key] = laid_over(out[key], value)
        else:
            out[key] = value
    return out


def _check_names(recipe: Recipe, file: str) -> None:
    """Conditions must name axes and values that exist, columns those of the printed files."""
    known = {axis: list(values) for axis, values in recipe.axes.items()}
    known["variant"] = list(recipe.variants)
    reduced = recipe.reduced
    conditions: list[Condition] = [*recipe.drop, *(w.condition for w in recipe.when)]
    conditions += [m.condition for m in recipe.measures]
    if reduced is not None:
        conditions += [dict(reduced.only), *(w.condition for w in reduced.when)]
    for condition in conditions:
        for axis, wanted in condition.items():
            if axis not in known:
                raise UserError(f"{file}: {axis!r} is no axis; {suggestion(axis, known)}")
            for value in wanted if isinstance(wanted, list) else [wanted]:
                if value not in known[axis]:
                    hint = suggestion(value, known[axis])
                    raise UserError(f"{file}: axis {axis!r} has no value {value!r}; {hint}")
    groups = [recipe.columns, *(m.columns for m in recipe.measures)]
    groups += [v.columns or {} for values in recipe.axes.values() for v in values.values()]
    for name in {name for columns in groups for name in columns}:
        if name not in COLUMNS:
            raise UserError(f"{file}: {name!r} is no printed column; {suggestion(name, COLUMNS)}")
    if not isinstance(recipe.base.get("method"), Mapping):
        raise UserError(
            f"{file}: base.method must be a mapping of slots, as in {{algorithm: fedavg}}"
        )


# ---- where recipes are ---------------------------------------------------------------------------
def folder() -> Path:
    """The recipes that come with shoal."""
    package = Path(shoal.__file__).parent
    installed = package / "recipes"  # a wheel brings them; a checkout has them next to the package
    return installed if installed.is_dir() else package.parent / "recipes"


def papers(root: Path | None = None) -> list[str]:
    """Papers that have recipes (files with a ``paper`` key)."""
    found = (root or folder()).glob("*/*.yaml")
    return sorted({path.parent.name for path in found if _is_recipe(path)})


def recipes(paper: str, table: str = "", root: Path | None = None) -> list[Recipe]:
    """The recipes of a paper, or of a file or folder; ``table`` is a number, a name or a file."""
    path = Path(paper)
    if path.is_file():
        found = [load_recipe(path)]
    else:
        base = path if path.is_dir() else (root or folder()) / paper
        if not base.is_dir():
            hint = suggestion(paper, papers(root))
            raise UserError(f"no recipes of {paper!r}; {hint}, or give the path of a recipe")
        found = [load_recipe(file) for file in sorted(base.glob("*.yaml")) if _is_recipe(file)]
        if not found:
            raise UserError(f"{base} has no recipes (YAML files with a paper and a table)")
    found.sort(key=lambda recipe: _order(recipe.table))
    if not table:
        return found
    kept = [recipe for recipe in found if _is_called(recipe, table)]
    if not kept:
        known = [recipe.table for recipe in found]
        raise UserError(f"{paper} has no recipe for table {table!r}; {suggestion(table, known)}")
    return kept


def _is_recipe(path: Path) -> bool:
    """A config lives beside recipes, too; a recipe says its paper."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return any(line.startswith(("paper:", "extends:")) for line in lines)


def _is_called(recipe: Recipe, wanted: str) -> bool:
    name, stem = recipe.table.casefold(), recipe.source.stem.casefold()
    return wanted.casefold() in (name, name.removeprefix("table "), stem)


def _order(table: str) -> tuple[int, int, str]:
    """Tables by number, what has none last."""
    digits = "".join(c for c in table if c.isdigit())
    numbered = table.startswith("Table ") and bool(digits)
    return (0, int(digits), table) if numbered else (1, 0, table)
