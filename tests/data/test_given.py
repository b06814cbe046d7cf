"""Rows that a program holds: every kind is the same data set, and goes straight into a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

import shoal
from shoal.core.errors import UserError
from shoal.data.given import dataset_of
from shoal.data.sources import load

ROWS = 60
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, 2)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "site": [f"s{i % 3}" for i in range(ROWS)], "y": Y}


class Pairs(TorchDataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


class Hugging:
    """What a data set of Hugging Face's is asked for."""

    column_names = list(COLUMNS)

    def __init__(self, rows: slice = slice(None)) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(range(ROWS)[self.rows])

    def with_format(self, kind: str) -> Hugging:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> Any:
        return pa.table(COLUMNS).take(list(range(ROWS))[self.rows])


def frames() -> dict[str, Any]:
    pd = pytest.importorskip("pandas")
    found = {"arrow": pa.table(COLUMNS), "pandas": pd.DataFrame(COLUMNS), "hugging": Hugging()}
    try:
        import polars

        found |= {"polars": polars.DataFrame(COLUMNS), "lazy": polars.LazyFrame(COLUMNS)}
    except ImportError:
        pass
    return found


def test_frames_are_read_as_files_are(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
    wanted = load("files", path=str(tmp_path / "a.parquet"), client="site")
    for frame in frames().values():
        found = dataset_of({"table": frame, "client": "site"})
        assert torch.equal(found.train.x, wanted.train.x) and found.names == ("s0", "s1", "s2")
        assert torch.equal(found.test.y, wanted.test.y) and found.group is not None


def test_parts_of_hugging_face(tmp_path: Path) -> None:
    parts = {"train": Hugging(slice(0, 50)), "test": Hugging(slice(50, 60))}
    found = dataset_of({"table": parts, "leave_out": "site", "normalize": "none"})
    np.testing.assert_array_equal(found.test.x, X[50:])
    np.testing.assert_array_equal(found.train.y, Y[:50])


def test_arrays_and_tensors_stay_as_they_are() -> None:
    wanted = dataset_of((X, Y))
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for given in ((x, y), TensorDataset(x, y), Pairs(), [X, Y], Subset(Pairs(), range(ROWS))):
        found = dataset_of(given)
        assert torch.equal(found.train.x, wanted.train.x)
        assert torch.equal(found.test.y, wanted.test.y)
    rows = {tuple(row) for row in X.tolist()}
    assert {tuple(row) for row in wanted.train.x.tolist()} < rows and len(wanted.test.y) == 12
    for given in ((X, Y, X[:9], Y[:9]), ((X, Y), (X[:9], Y[:9])), (Pairs(), TensorDataset(x, y))):
        assert torch.equal(dataset_of(given).train.x, x)
    own = dataset_of(wanted)
    assert own is wanted


@pytest.mark.parametrize(
    ("y", "target", "classes"),
    [
        (Y, "class", 2),
        (X[:, 0], "number", None),
        (X > 0, "multi_label", 2),
        (np.full((ROWS, 4), 2), "token", 3),
        (np.zeros((ROWS, 4, 4), int), "dense", 1),
    ],
)
def test_targets(y: Any, target: str, classes: int | None) -> None:
    found = dataset_of((X, y))
    assert (found.target, found.classes) == (target, classes)


def test_a_run_of_rows() -> None:
    small = {"model": "linear", "engine": "loop", "local": {"lr": 0.5}}
    natural = {"name": "static", "partition": "natural", "rounds": 3}
    frame = pa.table(COLUMNS)
    first = shoal.run(data={"table": frame, "client": "site"}, world=natural, **small)
    assert first.rounds[-1]["accuracy"] > 0.8
    assert first.plan.config.data.options == {"rows": ROWS, "kind": "Table"}
    second = shoal.run(data=(X, Y), world={"name": "static", "members": 3, "rounds": 1}, **small)
    assert second.plan.config.data.name == "memory"
    with pytest.raises(UserError, match="60 rows, tuple. were given to shoal.run in Python"):
        load("memory", rows=ROWS, kind="tuple")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, "data cannot be a int"),
        ((X, Y[:3]), r"x has shape \(60, 2\) and y \(3,\)"),
        ((X, -1 - Y), "y has the class -2"),
        ((X, Y, X[:, :1], Y), r"training rows have shape \(2,\) and test rows \(1,\)"),
        ({"table": (X, Y), "client": "site"}, "arrays have no option 'client'"),
        ({"table": pa.table(COLUMNS), "cleint": "site"}, "no option 'cleint'; did you mean"),
        (pa.table({"a": X[:, 0]}), "no column 'y'; say which one holds the answers"),
        ((X * np.inf, Y), "NaN or infinity in row 0 of its training rows"),
    ],
)
def test_what_is_no_data(given: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        shoal.run(data=given, world={"name": "static", "members": 2, "rounds": 1})
    assert "\n" not in str(caught.value) and caught.value.key == "data"


def test_a_tables_categories_are_embedded() -> None:
    rows = pa.table({**COLUMNS, "day": np.arange(ROWS).astype("datetime64[D]")})
    given = {"table": rows, "date": {"column": "day", "features": ["weekday"]}}
    made = shoal.run(data=given, model="tabular", engine="loop",
                     world={"name": "static", "members": 2, "rounds": 1})  # fmt: skip
    # a, b, three sites, seven weekdays
    assert made.plan.config.model.options["embedded"] == [[2, 3], [5, 7]]


def test_a_class_that_only_test_rows_have_is_refused() -> None:
    x = np.zeros((6, 2), np.float32)
    with pytest.raises(UserError, match="the class 7 in test row 2, and in no training row"):
        dataset_of((x, np.array([0, 1, 2] * 2), x[:2], np.array([1, 7])))
