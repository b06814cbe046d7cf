"""Data, metrics and configs that no run can use: one sentence that names the right place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import shoal
from shoal.cli import call
from shoal.core.errors import UserError

ROWS = range(60)
DAYS = [f"2023-01-{day}" for day in range(10, 30)]
TABLES = {
    "header only": ("a,b,y\n", r"has names of columns \(a, b, y\) and no rows"),
    "dates": ("a,day,y\n" + "".join(f"{i},{DAYS[i % 20]},{i % 2}\n" for i in ROWS),
              "column 'day' of .*table.csv holds dates"),
    "times": ("a,at,y\n" + "".join(f"{i},{DAYS[i % 20]} 10:00:00,{i % 2}\n" for i in ROWS),
              "column 'at' of .*table.csv holds dates"),
    "a single class": ("a,b,y\n" + "".join(f"{i},{i % 7},yes\n" for i in ROWS), "a single class"),
}  # fmt: skip
GOOD = "a,b,y\n" + "".join(f"{i % 5},{i % 7},{i % 2}\n" for i in ROWS)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a config that must be refused; the sentence, and the line it names."""

    def run(text: str, table: str = GOOD) -> str:
        (tmp_path / "table.csv").write_text(table)
        (tmp_path / "config.yaml").write_text(text.replace("TABLE", str(tmp_path / "table.csv")))
        assert call(["run", str(tmp_path / "config.yaml"), "-o", str(tmp_path / "a")]) == 2
        lines = capsys.readouterr().err.splitlines(keepends=True)
        said = "".join(line for line in lines if not line.startswith("shoal: runs code of"))
        assert said.startswith("shoal: ") and said.count("\n") == 1
        assert not (tmp_path / "a").exists()
        return said.removeprefix("shoal: ")

    return run


def written(**values: Any) -> str:
    """One key a line, in the order given."""
    return yaml.safe_dump(
        {
            "seed": 0,
            "model": "linear",
            "world": {"name": "static", "members": 3, "rounds": 1, "partition": "iid"},
            **values,
        },
        sort_keys=False,
        default_flow_style=None,
        width=1000,
    )


@pytest.mark.parametrize("kind", TABLES)
def test_tables(kind: str, refused: Any) -> None:
    table, sentence = TABLES[kind]
    said = refused(written(data={"path": "TABLE"}), table)
    assert said.startswith("config.yaml, line 4: ")
    with pytest.raises(AssertionError):  # the same config runs on a good table
        refused(written(data={"path": "TABLE"}))
    assert re.search(sentence, said)


def test_dates_in_arrays(tmp_path: Path) -> None:
    days = np.arange("2023-01-01", "2023-03-02", dtype="datetime64[D]")
    np.savez(tmp_path / "a.npz", day=days, y=np.arange(60) % 2)
    with pytest.raises(UserError, match="column 'day' of .* holds dates"):
        shoal.run(data={"path": str(tmp_path / "a.npz")}, model="linear", world={
            "name": "static", "members": 3, "rounds": 1, "partition": "iid"})  # fmt: skip


@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_metrics_of_numbers_on_classes(name: str, refused: Any) -> None:
    said = refused(written(data="digits", evaluate={"metrics": ["auc", name]}))
    assert said.startswith(f"config.yaml, line 5: evaluate.metrics: {name} does not fit 'digits'")


def test_words_are_no_truth_values(refused: Any) -> None:
    """``no`` is a word in a config; as an option it would count as true."""
    said = refused(written(data={"name": "digits", "flat": "no"}))
    assert "flat of data set 'digits' must be true or false, not 'no'" in said


@pytest.mark.parametrize("name", ["os:getcwd", "builtins:max"])
def test_a_function_that_is_no_metric(name: str, refused: Any) -> None:
    said = refused(written(data="digits", evaluate={"metrics": [name]}))
    assert said.startswith(f"config.yaml, line 5: evaluate.metrics: {name!r} must make a number of")


def test_a_metric_that_is_not_known(refused: Any) -> None:
    said = refused(written(data="digits", evaluate={"metrics": ["acu"]}))
    assert said.startswith("config.yaml, line 5: evaluate.metrics: 'acu' is not known")


@pytest.mark.parametrize("name", ["auc", "f1"])
def test_metrics_of_classes_on_a_problem(name: str, refused: Any) -> None:
    said = refused(f"problem: quadratic\nevaluate: {{metrics: [{name}]}}\n")
    assert said.startswith(f"config.yaml, line 2: evaluate.metrics: {name} is for classes")


def test_an_empty_config(refused: Any) -> None:
    for text in ("", "# nothing yet\n"):
        assert refused(text).startswith("config.yaml is empty; say at least what world it is")
    assert "members of world 'churn' is not given" in refused("seed: 1\n")


def test_natural_clients_that_nobody_named(refused: Any) -> None:
    world = {"name": "static", "rounds": 1, "partition": "natural"}
    said = refused(written(world=world, data={"path": "TABLE"}))
    assert said.startswith("config.yaml, line 4: data.client is not given")
    said = refused(written(world=world, data="digits"))
    assert said.startswith("config.yaml, line 3: partition 'natural' needs to know whose row")
