"""The user's own files: every kind gives the same rows, and bad ones are refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from sklearn.preprocessing import StandardScaler

from shoal.core.errors import UserError
from shoal.data.sources import load

ROWS = 40


def columns() -> dict[str, list[Any]]:
    return {
        "p1": [float(i) for i in range(ROWS)],
        "p2": [i * 0.5 for i in range(ROWS)],
        "kind": ["cat" if i % 4 else "ant" for i in range(ROWS)],
        "site": [f"s{i % 3}" for i in range(ROWS)],
    }


def written(path: Path, values: dict[str, list[Any]]) -> str:
    if path.suffix == ".npz":
        np.savez(path, **{k: np.array(v) for k, v in values.items()})  # type: ignore[arg-type]
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(pyarrow.table(values), path)
    else:
        pyarrow.parquet.write_table(pyarrow.table(values), path)
    return str(path)


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("x", [None, ["p1", "p2"], "p*"])
def test_tables(tmp_path: Path, ending: str, x: Any) -> None:
    path = written(tmp_path / f"own.{ending}", columns())
    data = load("files", path=path, x=x, y="kind", client="site", normalize="none")
    assert data.shape == (2,) and data.classes == 2
    assert (len(data.train.y), len(data.test.y)) == (32, 8)
    assert data.test.y.bincount().tolist() == [2, 6], "the split keeps the shares of classes"
    assert data.group is not None
    row = int(data.train.x[5, 0])
    assert data.train.x[5].tolist() == [row, row * 0.5]
    assert int(data.train.y[5]) == int(row % 4 > 0) and int(data.group[5]) == row % 3
    assert data.names == ("s0", "s1", "s2")
    again = load("files", path=path, x=x, y="kind", client="site")
    scaler = StandardScaler().fit(data.train.x)
    for ours, plain in ((again.train.x, data.train.x), (again.test.x, data.test.x)):
        torch.testing.assert_close(ours, torch.from_numpy(scaler.transform(plain)).float())


def test_arrays_of_images_a_test_column_and_regression(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    held = np.arange(10) > 6
    np.savez(path, x=np.full((10, 1, 4, 4), 255, np.uint8), y=np.arange(10) % 2, held=held,
             z=np.arange(10.0))  # fmt: skip
    data = load("files", path=str(path), test="held")
    assert data.shape == (1, 4, 4) and len(data.test.y) == 3 and float(data.train.x.max()) == 1.0
    real = load("files", path=str(path), y="z", x=["y"], regression=True)
    assert real.classes is None and real.train.y.dtype == torch.float32


def test_lists_in_parquet_are_features(tmp_path: Path) -> None:
    values = {"v": [[1.0, 2.0, 3.0]] * 10, "y": [0, 1] * 5}
    data = load("files", path=written(tmp_path / "a.parquet", values), x="v")
    assert data.shape == (3,)


def test_a_folder_of_images(tmp_path: Path) -> None:
    for client in ("u", "v"):
        for kind in ("Cat", "dog"):
            (tmp_path / client / kind).mkdir(parents=True)
            for i in range(5):
                image = Image.fromarray(np.full((6, 6, 3), 100, np.uint8))
                image.save(tmp_path / client / kind / f"{i}.png")
    data = load("files", path=str(tmp_path), client="site")
    assert data.shape == (3, 6, 6) and data.classes == 2 and len(data.train.y) == 16
    assert data.group is not None and set(data.group.tolist()) == {0, 1}
    Image.fromarray(np.zeros((7, 6, 3), np.uint8)).save(tmp_path / "u" / "Cat" / "9.png")
    with pytest.raises(UserError, match="6x6; give a size"):
        load("files", path=str(tmp_path))
    assert load("files", path=str(tmp_path), size=4).shape == (3, 4, 4)
    (tmp_path / "u" / "Cat" / "8.png").write_text("no picture")
    with pytest.raises(UserError, match="8.png is not an image"):
        load("files", path=str(tmp_path), size=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"y": "kin"}, "no column 'kin' for y; did you mean 'kind'"),
        ({"y": "kind", "client": "sight"}, "no column 'sight' for client; did you mean 'site'"),
        ({"y": "kind", "x": ["p1", "p3"]}, "no column 'p3' for x; did you mean 'p"),
        ({"y": "kind", "x": "q*"}, "no column that starts with 'q'"),
        ({"y": "kind", "normalize": "zscore"}, "must be standard, minmax or none"),
        ({"y": "kind", "leave_out": ["sit"]}, "no column 'sit' for data; did you mean 'site'"),
        ({"y": "kind", "text": {"column": "site", "length": 4, "size": 1}}, "no setting 'size'"),
        ({"y": "kind", "date": {"column": "site"}}, "needs features"),
        ({"y": "kind", "date": {"column": "site", "features": ["month"]}}, "'s0' in row 1, which"),
        ({"y": "kind", "client": "p1"}, "another value in every row"),
        ({"y": "kind", "client": "site", "test": 1.5}, "test .*is 1.5"),
    ],
)
def test_wrong_columns(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load("files", path=written(tmp_path / "own.csv", columns()), **options)
    assert "\n" not in str(caught.value)


def test_missing_values_are_named_by_row_and_column(tmp_path: Path) -> None:
    values = columns()
    values["p2"][6] = float("inf")
    path = written(tmp_path / "own.npz", values)
    with pytest.raises(UserError, match="infinite.* in row 7 .column 'p2'"):
        load("files", path=path, y="kind", client="site")
    values = columns()
    values["kind"][2] = None
    path = written(tmp_path / "own.parquet", values)
    with pytest.raises(UserError, match="'kind' .* has no value in row 3"):
        load("files", path=path, y="kind", client="site")


def test_unequal_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 2)), y=np.zeros(4, int))
    with pytest.raises(UserError, match="not equally long: x has 5, y has 4 rows"):
        load("files", path=str(tmp_path / "a.npz"))


def test_what_is_not_there_or_not_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the option 'path'"):
        load("files")
    with pytest.raises(UserError, match="no file or folder nowhere"):
        load("files", path="nowhere")
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="ends in none of"):
        load("files", path=str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="has no images"):
        load("files", path=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a,y\n", {}, "has names of columns .a, y. and no rows"),
        ("a,b,a,y\n1,2,3,0\n", {}, "several columns called 'a' .columns 1, 3."),
        ("1,2\n3,4\n", {}, "values .1, 2, .... in its first line"),
        (
            "a,y\n1,0\n2,1\nold,1\n3,0\n",
            {"regression": True},
            "'a' .* holds numbers, but 'old' in row 3",
        ),
        ("a,y\n1,0\n2,\n3,1\n", {}, "column 'y' .* has no value in row 2"),
        ("a,y\n1,1.5\n2,\n3,1\n", {"regression": True}, "'y' .* has no value in row 2"),
        ("a,y\n1,b\n2,c\n", {"regression": True}, "'y' .* is not made of numbers"),
        (
            "day,y\n" + "2026-03-01,0\n" * 3,
            {"regression": True},
            "'day' .* holds dates, not numbers",
        ),
        (
            "day,y\n2026-03-01,0\nsoon,1\n2026-03-01,0\n",
            {"date": {"column": "day", "features": ["month"]}, "regression": True},
            "'day' .* has 'soon' in row 2, which is no date",
        ),
        ("a,part,y\n1,train,0\n2,test,1\n", {"test": "part"}, "class 1 in row 2, a test row"),
        ("a,part,y\n1,train,0\n2,maybe,1\n", {"test": "part"}, "'maybe' in row 2; it must be"),
        ('a,y\n"1,5",0\n"2,5",1\n"3,5",0\n', {"regression": True}, "with a comma, such as '1,5'"),
        ("a,b,y\n1,,0\n2,,1\n3,4\n", {}, "has 2 values in row 3, .* names 3 columns"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, options: dict[str, Any], says: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        load("files", path=str(path), **options)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_csv_as_people_write_it(tmp_path: Path) -> None:
    """Semicolons, a byte order mark, quotes, a mark for what is missing."""
    path = tmp_path / "own.csv"
    rows = "".join(f'{i};"a; b";{"?" if i == 3 else i * 2};{i % 2}\n' for i in range(20))
    path.write_text("\ufeffage;kind;dose;y\n" + rows)
    data = load("files", path=str(path), missing=["?"], normalize="none", test=0.5)
    assert data.shape == (3,) and "column 'dose' has no value in 1 of 20 rows" in data.notes[0]
    known = data.train.x[:, 0] * 2 == data.train.x[:, 2]
    known_test = data.test.x[:, 0] * 2 == data.test.x[:, 2]
    assert int((~known).sum() + (~known_test).sum()) == 1, "only the missing one is another number"
    own = data.train.x[known, 2].mean()
    filled = data.train.x[~known, 2] if (~known).any() else data.test.x[~known_test, 2]
    assert float(filled) == pytest.approx(float(own)), "the mean of training rows"


def test_a_column_called_x_is_the_only_input_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"{k},{k % 5},{k % 2}" for k in range(40)]
    path.write_text("\n".join(["x,z,y", *rows]), encoding="utf-8")
    data = load("files", path=str(path), y="y")
    assert data.shape == (1,) and any("not read: z" in note for note in data.notes)
    assert not load("files", path=str(path), y="y", x=["x", "z"]).notes
