"""The shape of the package: rooms that one can look over, one name per class, no splinters."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
MOST_ENTRIES, LEAST_LINES = 15, 40
FRAME = ("__init__.py", "__main__.py", "__pycache__", "py.typed")


@cache
def trees() -> dict[str, ast.Module]:
    """Every module by its dotted name."""
    paths = {path: path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py")}
    return {".".join(short.parts): ast.parse(path.read_text()) for path, short in paths.items()}


def readers() -> dict[str, set[str]]:
    """Who imports a module, by its dotted name."""
    found = defaultdict[str, set[str]](set)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for target in (node.module, *(f"{node.module}.{a.name}" for a in node.names)):
                    found[target].add(name)
    return found


def test_no_folder_has_more_entries_than_one_can_look_over() -> None:
    folders = [ROOT, *(p for p in ROOT.rglob("*") if p.is_dir() and p.name != "__pycache__")]
    counts = {str(f): sum(e.name not in FRAME for e in f.iterdir()) for f in folders}
    assert not {name: n for name, n in counts.items() if n > MOST_ENTRIES}


def test_a_public_class_has_a_name_of_its_own() -> None:
    where = defaultdict[str, list[str]](list)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(name)
    assert not {name: places for name, places in where.items() if len(places) > 1}


def test_no_module_is_a_splinter_of_its_only_reader() -> None:
    read, splinters = readers(), []
    for name in trees():
        path = ROOT.parent / Path(*name.split(".")).with_suffix(".py")
        few = len(path.read_text().splitlines()) < LEAST_LINES
        if few and len(read[name]) == 1 and path.name not in FRAME:
            splinters.append(name)
    assert not splinters


def test_a_package_lists_what_is_in_it() -> None:
    missing = []
    for name, tree in trees().items():
        path = ROOT.parent / Path(*name.split("."))
        if path.name == "__init__" and path.parent != ROOT:
            listed = set(re.findall(r"\w+", ast.get_docstring(tree) or ""))
            inside = {e.stem for e in path.parent.glob("*.py") if e.name not in FRAME}
            inside |= {e.parent.name for e in path.parent.glob("*/__init__.py")}
            missing += [f"{path.parent.name}/{entry}" for entry in inside - listed]
    assert not missing
