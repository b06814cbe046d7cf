"""Where recipes are: inside the installed package, beside it in a checkout, or at a path."""

from __future__ import annotations

from pathlib import Path

import shoal
from shoal.errors import UserError, suggestion
from shoal.reproduce.recipe import Recipe, load_recipe


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
