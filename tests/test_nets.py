"""scripts/nets.py sees that two checkouts agree, and where they do not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "nets.py"


@pytest.fixture(scope="module")
def nets() -> Any:
    spec = spec_from_file_location("nets", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["nets"] = module
    spec.loader.exec_module(module)
    return module


def compared(old: Path, new: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(old), str(new), *flags]
    return subprocess.run(command, capture_output=True, text=True)


def with_other_seeds(folder: Path) -> Path:
    """A checkout like this one that draws with other seeds."""
    package = folder / "shoal" / "core"
    package.mkdir(parents=True)
    for path in [*(ROOT / "shoal").iterdir(), *(ROOT / "shoal" / "core").iterdir()]:
        if path.name not in ("core", "rng.py", "__pycache__"):
            (folder / path.relative_to(ROOT)).symlink_to(path)
    text = (ROOT / "shoal" / "core" / "rng.py").read_text()
    changed = text.replace("np.array([seed]", "np.array([seed + 1]")
    assert changed != text
    (package / "rng.py").write_text(changed)
    return folder


@pytest.mark.slow
def test_two_equal_checkouts_are_equal() -> None:
    done = compared(ROOT, ROOT, "--only", "linear")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split() for line in lines[:-1]] == [
        ["linear", engine, way, "equal"]
        for engine in ("loop", "stacked")
        for way in ("plain", "killed", "twice")
    ]


@pytest.mark.slow
def test_other_seeds_are_seen(tmp_path: Path) -> None:
    done = compared(ROOT, with_other_seeds(tmp_path), "--only", "linear", "--ways", "plain")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first in round 0: cohort is" in done.stdout
    assert done.stdout.count("differs by") == 2


def test_bad_wishes_are_one_sentence(tmp_path: Path) -> None:
    for arguments, said in (
        ((tmp_path, ROOT), "has no package shoal"),
        ((ROOT, ROOT, "--only", "liner"), "there is no net 'liner'"),
        ((ROOT, ROOT, "--ways", "plain,once"), "there is no way 'once'"),
    ):
        done = compared(*arguments)
        assert done.returncode == 2 and said in done.stderr
        assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_the_last_bit_counts(nets: Any) -> None:
    one = np.ones(3, np.float32)
    next_to_it = np.nextafter(one, np.float32(2.0))
    assert nets.apart(one, one.copy()) == 0.0
    assert nets.apart(one, next_to_it) == pytest.approx(np.finfo(np.float32).eps)
    assert nets.apart(np.zeros(2), -np.zeros(2)) > 0.0  # other bits, though no other numbers
    assert nets.apart(one, one.astype(np.float64)) == nets.APART
    assert nets.apart(one, np.full(3, np.nan, np.float32)) == nets.APART


def test_records_are_compared_by_what_the_old_one_says(nets: Any) -> None:
    old = {"cohort": [1, 2], "loss": 2.0, "accuracy": None}
    assert nets.apart(old, {**old, "threads": 2}) == 0.0
    assert nets.apart(old, {"cohort": [1, 2], "loss": 2.0}) == nets.APART
    assert nets.apart(old, {**old, "cohort": [1, 3]}) == nets.APART
    assert nets.apart(old, {**old, "loss": 2.0 + 1e-12}) == pytest.approx(5e-13, rel=1e-3)
