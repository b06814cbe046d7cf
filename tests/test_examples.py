"""The examples of own code run as they say."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import rounds

ROOT = Path(__file__).parents[1]


def shell(tmp_path: Path, *words: str) -> str:
    """What a command prints, in an empty directory."""
    settings = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.kill
def test_everything_of_ones_own_is_killed_and_resumed(tmp_path: Path) -> None:
    said = shell(tmp_path, str(ROOT / "examples" / "own_everything.py"))
    assert "killed   by signal 9 in round 17" in said
    assert "resumed  to the bits of a run that nobody killed: True" in said
    assert float(re.findall(r"whole +accuracy (0\.\d+)", said)[0]) > 0.8
    # the config beside the module says the same run
    shell(tmp_path, "-m", "shoal", "run", str(ROOT / "examples" / "own.yaml"), "-o", "line")
    (python,) = tmp_path.glob("own-*/whole")
    assert rounds(tmp_path / "line") == rounds(python)


def test_the_notebook_was_executed_and_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "docs")
    monkeypatch.chdir(tmp_path)
    notebook = importlib.import_module("notebook")
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    again = notebook.executed(cells)
    for old, new in zip(cells, again, strict=True):
        faces = [[sorted(o.get("data", ())) for o in c.get("outputs", ())] for c in (old, new)]
        assert faces[0] == faces[1] and (old["cell_type"] == "markdown" or faces[0])
