"""What becomes of columns, against scikit-learn and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from shoal.core.errors import UserError
from shoal.data import tables
from shoal.data.columns import Numbers, part_of, prepared
from shoal.data.sources import load
from shoal.data.text import words

SCALERS = {"standard": StandardScaler, "minmax": MinMaxScaler}


def table(**columns: Any) -> tables.Table:
    return tables.of_arrow(pa.table(columns), "rows")


@pytest.mark.parametrize("normalize", ["standard", "minmax"])
@pytest.mark.parametrize("rows", [40, 3000])  # within a block, and over several
def test_normalised_as_by_scikit_learn(normalize: Any, rows: int) -> None:
    """Training rows say how; large offsets, constants, whole numbers and float32 are exact."""
    draw = np.random.default_rng(0)
    test = draw.random(rows) < 0.3
    columns = {f"c{i}": draw.normal(i, i + 1, rows) for i in range(120)}
    columns["seconds"] = 1.7e9 + draw.integers(0, 1000, rows)
    columns["single"] = draw.normal(size=rows).astype(np.float32)
    columns["same"] = np.full(rows, 7.25)
    encoders = [Numbers(name) for name in columns]
    made, train, tested = prepared(table(**columns), encoders, test, normalize)
    values = np.column_stack([*columns.values()]).astype(np.float64)
    scaler = SCALERS[normalize]().fit(values[~test])
    np.testing.assert_allclose(train, scaler.transform(values[~test]), atol=2e-5)
    np.testing.assert_allclose(tested, scaler.transform(values[test]), atol=2e-5)
    np.testing.assert_array_equal(made.apply(table(**columns))[test], tested)


@pytest.mark.parametrize("size", [1e-28, 1e-18, 1.0, 1e22, 1e30])
def test_squares_that_float32_has_no_room_for(size: float) -> None:
    values = np.random.default_rng(0).normal(size=(500, 2)) * [size, 1]
    table = tables.of_arrays({"a": values[:, 0], "b": values[:, 1]}, "t")
    held = np.arange(500) % 5 == 0
    train = prepared(table, [Numbers("a"), Numbers("b")], held, "standard")[1]
    by_hand = StandardScaler().fit_transform(values[~held])
    np.testing.assert_allclose(train, by_hand, atol=1e-5)


def test_test_rows_change_no_bit_of_training_rows() -> None:
    values = np.random.default_rng(0).normal(size=50)
    held = np.arange(50) % 5 == 0  # the first row too
    other = np.where(held, 1e9, values)
    made = [prepared(table(a=v), [Numbers("a")], held, "standard")[1] for v in (values, other)]
    np.testing.assert_array_equal(*made)


def test_missing_numbers_are_the_mean_of_training_rows() -> None:
    values = np.array([1.0, np.nan, 3.0, 100.0])
    test = np.array([False, False, False, True])
    made, train, tested = prepared(table(a=values), [Numbers("a")], test, "none")
    assert train[:, 0].tolist() == [1.0, 2.0, 3.0] and tested[:, 0].tolist() == [100.0]
    assert made.missing == {"a": 1}
    with pytest.raises(UserError, match="'a' of rows has no value in any training row"):
        prepared(table(a=values), [Numbers("a")], ~np.array([False, True, False, False]), "none")


def test_categories_are_those_of_training_rows(tmp_path: Path) -> None:
    kinds = ["red", "blue", None, "red", "green", "blue"]
    pyarrow.parquet.write_table(
        pa.table({"kind": kinds, "zip": [1, 2, 1, 2, 1, 2], "y": [0, 1, 0, 1, 0, 1],
                  "part": [0, 0, 0, 0, 1, 1]}),
        tmp_path / "a.parquet",
    )  # fmt: skip
    data = load("files", path=str(tmp_path / "a.parquet"), test="part", category="zip")
    # (missing), blue, red; zip 1, zip 2
    assert data.train.x.tolist() == [
        [0, 0, 1, 1, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 0], [0, 0, 1, 0, 1],
    ]  # fmt: skip
    assert data.test.x.tolist() == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 1]], "green is none of them"
    assert "'kind' has no value in 1 of 6 rows" in data.notes[0]


def test_dates_by_hand(tmp_path: Path) -> None:
    """19 November 2026 is a Thursday."""
    found = np.array(["2026-11-19T18:30", "2024-02-29", "NaT"], dtype="datetime64[s]")
    by_part = {part: part_of(found, part).tolist()
               for part in ("hour", "weekday", "day", "month", "year")}  # fmt: skip
    assert by_part == {
        "hour": [18, 0, -1],
        "weekday": [3, 3, -1],
        "day": [19, 29, -1],
        "month": [11, 2, -1],
        "year": [2026, 2024, -1],
    }
    rows = [f"{day:02d}.11.2026,{day % 2}\n" for day in range(1, 31)]
    (tmp_path / "d.csv").write_text("day,y\n" + "".join(rows))
    when = {"column": "day", "features": ["weekday", "elapsed"], "format": "%d.%m.%Y"}
    data = load("files", path=str(tmp_path / "d.csv"), date=when, normalize="none")
    assert data.shape == (8,) and data.train.x[:, 7].min() == 0
    steps = data.train.x[:, 7].diff()
    assert set(steps.tolist()) <= {1.0, 2.0, 3.0, 4.0}, "days since the first training row"
    assert data.train.x[:, :7].sum(1).unique().tolist() == [1.0]


def test_words_are_counted_as_by_scikit_learn(tmp_path: Path) -> None:
    notes = ["cold and a cough", "a broken arm", "a cough, a cough!", "fever and cold", "arm hurts"]
    rows = {"note": notes * 4, "age": list(range(20)), "y": [0, 1, 0, 0, 1] * 4}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    path = str(tmp_path / "t.parquet")
    data = load("files", path=path, x=["note"], text="note")
    draw = load("files", path=path, x=["age"], normalize="none")
    train = [rows["note"][int(age)] for age in draw.train.x[:, 0]]
    tfidf = TfidfVectorizer(tokenizer=words, token_pattern=None).fit(train)
    theirs = tfidf.transform(train).toarray()
    length = np.sqrt((theirs > 0).sum(1).mean())  # a word is about 1
    np.testing.assert_allclose(
        np.sort(data.train.x.numpy(), 1), length * np.sort(theirs, 1), atol=1e-5
    )  # their columns are in alphabetical order, ours by frequency
    beside = load("files", path=path, text={"column": "note", "vocabulary": 5})
    assert beside.shape == (4,), "age, and the three words that a vocabulary of 5 has room for"
    tokens = load("files", path=path, text={"column": "note", "as": "tokens", "length": 3})
    assert tokens.train.x.dtype == torch.int64 and tokens.shape == (3,) and tokens.vocabulary
    assert "left out are age" in tokens.notes[0]


def test_many_texts_are_no_category(tmp_path: Path) -> None:
    rows = {"name": [f"n {i}" for i in range(200)], "y": [0, 1] * 100}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="160 different texts, too many .*text: name"):
        load("files", path=str(tmp_path / "t.parquet"))
