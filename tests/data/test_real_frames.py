"""Frames and data sets of libraries that few tests install: polars and Hugging Face's datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import shoal
from shoal.core.errors import UserError
from shoal.data.given import dataset_of

pytestmark = pytest.mark.slow

ROWS = 60
DRAW = np.random.default_rng(0)
A = DRAW.normal(size=ROWS).astype(np.float32)
SITE = [f"s {i % 3}" for i in range(ROWS)]
COLUMNS: dict[str, Any] = {"a": A, "kind": list("uvw") * 20, "site": SITE, "y": (A > 0) * 1}
NATURAL = {"name": "static", "partition": "natural", "rounds": 2}


def wanted(**more: Any) -> shoal.Dataset:
    return dataset_of({"table": pa.table({**COLUMNS, **more}), "client": "site"})


def same(given: Any, other: shoal.Dataset) -> bool:
    found = dataset_of({"table": given, "client": "site"})
    pools = zip((*found.train, *found.test), (*other.train, *other.test), strict=True)
    return found.names == other.names and all(torch.equal(a, b) for a, b in pools)


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(COLUMNS)
    kinds = (pl.String, pl.Categorical, pl.Enum(["u", "v", "w"]))
    for kind in kinds:
        assert same(frame.with_columns(pl.col("kind").cast(kind)), wanted())
    assert same(frame.lazy(), wanted())
    holes = [None if i % 7 == 0 else kind for i, kind in enumerate(COLUMNS["kind"])]
    for kind in kinds:
        gone = frame.with_columns(pl.Series("kind", holes, pl.String).cast(kind))
        assert same(gone, wanted(kind=holes))
    result = shoal.run(data={"table": frame, "client": "site"}, model="linear", world=NATURAL)
    assert result.rounds[-1]["accuracy"] is not None
    with pytest.raises(UserError, match="the Series cannot be read"):
        dataset_of(frame["a"])


def test_hugging_face() -> None:
    hf = pytest.importorskip("datasets")
    plain = {name: list(values) for name, values in COLUMNS.items()}
    rows = hf.Dataset.from_dict(plain).cast_column("a", hf.Value("float32"))
    for given in (rows, rows.with_format("torch")):
        assert same(given, wanted())
    parts = hf.DatasetDict({"train": rows.select(range(50)), "test": rows.select(range(50, 60))})
    found = dataset_of({"table": parts, "client": "site", "normalize": "none"})
    np.testing.assert_array_equal(found.test.x[:, 0], A[50:])
    result = shoal.run(data={"table": rows, "client": "site"}, model="linear", world=NATURAL)
    assert result.rounds[-1]["accuracy"] is not None
    with pytest.raises(UserError, match="data cannot be a IterableDataset"):
        dataset_of(rows.to_iterable_dataset())


def test_pictures_of_hugging_face() -> None:
    hf = pytest.importorskip("datasets")
    from PIL import Image

    pixels = DRAW.integers(0, 256, (20, 4, 6, 3)).astype(np.uint8)
    labels = [i % 2 for i in range(20)]
    named = hf.ClassLabel(names=["cat", "dog"])
    kinds = hf.Features({"image": hf.Image(), "label": named})
    shown = {"image": [Image.fromarray(p) for p in pixels], "label": labels}
    rows = hf.Dataset.from_dict(shown, features=kinds)
    part = hf.DatasetDict({"train": rows.select(range(15)), "test": rows.select(range(15, 20))})
    found = dataset_of({"table": part, "y": "label"})
    assert found.shape == (3, 4, 6) and found.classes == 2
    expected = np.moveaxis(pixels, -1, 1)[15:] / np.float32(255)
    np.testing.assert_array_equal(found.test.x, expected)
    world = {"name": "static", "members": 2, "rounds": 1}
    result = shoal.run(data={"table": rows, "y": "label"}, model="linear", world=world)
    assert result.rounds[-1]["accuracy"] is not None
    grey = hf.Features({"field": hf.Array2D((4, 6), "float32"), "label": named})
    fields = hf.Dataset.from_dict({"field": pixels[..., 0].tolist(), "label": labels}, grey)
    assert dataset_of({"table": fields, "y": "label"}).shape == (4, 6)
