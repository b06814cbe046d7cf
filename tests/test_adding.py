"""The patches of ``docs/adding.md`` apply to this checkout, stay small, and pass their tests."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
PATCHES = dict(re.findall(r"^## (.+?)\n.*?^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
MOST = 40  # lines of code
every_patch = pytest.mark.parametrize("name", PATCHES)


def changed(name: str) -> list[str]:
    """The files that a patch changes or adds."""
    return re.findall(r"^\+\+\+ b/(\S+)$", PATCHES[name], re.MULTILINE)


def patched(name: str, checkout: Path) -> None:
    """A copy of this checkout's code, with the patch."""
    for folder in ("shoal", "tests"):
        shutil.copytree(
            ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", *changed(name)):
        if (ROOT / file).exists() and not (checkout / file).exists():
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, checkout / file)
    done = subprocess.run(
        ["git", "apply", "-"], cwd=checkout, input=PATCHES[name], capture_output=True, text=True
    )
    assert done.returncode == 0, f"docs/adding.md, {name}: {done.stderr}"


def test_there_is_a_patch_for_every_recipe_that_has_one() -> None:
    assert len(PATCHES) == 5 == PAGE.count("```diff")


@every_patch
def test_it_applies_and_is_small(name: str, tmp_path: Path) -> None:
    patched(name, tmp_path)
    code = [file for file in changed(name) if file.startswith("shoal/")]
    assert len({file.split("/")[1] for file in code}) == 1, "a patch stays in one package"
    lines = runpy.run_path(str(ROOT / "scripts" / "size.py"))["lines_of_code"]
    before = sum(lines(ROOT / file) for file in code if (ROOT / file).exists())
    added = sum(lines(tmp_path / file) for file in code) - before
    assert 0 < added <= MOST
    said = re.search(rf"^\| \[{name}\].* \| (\d+) \|$", PAGE, re.MULTILINE)
    assert said is not None and int(said[1]) == added, "the table at the top counts its lines"
    assert any(file.startswith("tests/") for file in changed(name))


@pytest.mark.slow
@every_patch
def test_its_tests_pass(name: str, tmp_path: Path) -> None:
    patched(name, tmp_path)
    tests = ["tests/test_house.py", *(f for f in changed(name) if f.startswith("tests/"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests]
    here = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
