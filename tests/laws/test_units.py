"""Answers in thousands are learnt as well as those around 0, and predicted in their own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shoal

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(300, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * DRAW.normal(size=300)


def run(engine: str, scale: float, shift: float, columns: int = 1) -> Any:
    answers = {f"y{i}": shift + (i + 1) * scale * Y for i in range(columns)}
    rows = pa.table({f"x{i}": X[:, i] for i in range(3)} | answers)
    given = {"table": rows, "y": list(answers), "target": "number"}
    return shoal.run(data=given, model="linear", engine=engine, local={"lr": 0.1},
                     world={"name": "static", "members": 4, "partition": "iid", "rounds": 9},
                     evaluate={"metrics": ["r2", "mae"], "rows": "test_all"})  # fmt: skip


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("columns", [1, 2])
def test_a_run_does_not_depend_on_the_unit(engine: str, columns: int) -> None:
    """The same steps in every unit: equal R2 and loss, errors as large as the unit."""
    plain, large = run(engine, 1.0, 0.0, columns), run(engine, 1000.0, 50_000.0, columns)
    for small, big in zip(plain.rounds, large.rounds, strict=True):
        assert big["metrics"]["r2"] == pytest.approx(small["metrics"]["r2"], abs=1e-4)
        assert big["metrics"]["mae"] == pytest.approx(1000 * small["metrics"]["mae"], rel=1e-3)
        assert big["loss"] == pytest.approx(small["loss"], rel=1e-3)
    assert plain.rounds[-1]["metrics"]["r2"] > 0.9


def test_engines_agree() -> None:
    for one, other in zip(run("loop", 9.0, 80.0, 2).rounds, run("stacked", 9.0, 80.0, 2).rounds,
                          strict=True):  # fmt: skip
        assert one["metrics"]["mae"] == pytest.approx(other["metrics"]["mae"], rel=1e-4)
