"""Several inputs of a network: from arrays, from files, and what does not go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_networks import Tabular

import shoal
from shoal.core.errors import UserError
from shoal.core.types import split_inputs
from shoal.data import given
from shoal.data.sources import load
from shoal.models import model

SOURCE = np.random.default_rng(0)
NUMBERS = SOURCE.normal(size=(90, 4)).astype(np.float32)
KINDS = SOURCE.integers(0, 4, (90, 2))
Y = (KINDS[:, 0] + (NUMBERS[:, 0] > 0)) % 3
X = {"numbers": NUMBERS, "kinds": KINDS}


@model("tabular_for_tests")
def tabular_for_tests(shape: tuple[int, ...], classes: int) -> Tabular:
    return Tabular()


def run(data: Any, **more: Any) -> shoal.Result:
    world = {"name": "static", "members": 3, "rounds": 4, "partition": "iid", **more}
    return shoal.run(data=data, model="tabular_for_tests", world=world, local={"lr": 0.3})


def written(path: Path) -> dict[str, Any]:
    np.savez(path / "rows.npz", **X, y=Y, a=NUMBERS[:, 0], b=NUMBERS[:, 1])
    return {"name": "files", "path": str(path / "rows.npz")}


def test_from_arrays_and_from_a_file_alike(tmp_path: Path) -> None:
    held = given.dataset_of((X, Y))
    options = {**written(tmp_path), "x": {"numbers": "numbers", "kinds": "kinds"}}
    options.pop("name")
    read = load("files", **options)
    assert held.inputs == read.inputs and held.shape == read.shape == (6,)
    both = [torch.cat([data.train.x, data.test.x]) for data in (held, read)]
    assert sorted(map(tuple, both[0].tolist())) == sorted(map(tuple, both[1].tolist()))
    parts = split_inputs(read.train.x, read.inputs)
    assert parts["kinds"].dtype is torch.int64 and set(parts["kinds"].unique().tolist()) == {
        0,
        1,
        2,
        3,
    }


def test_columns_make_an_input(tmp_path: Path) -> None:
    options = {**written(tmp_path), "x": {"both": ["a", "b"], "kinds": "kinds"}}
    options.pop("name")
    data = load("files", **options)
    assert [one.shape for one in data.inputs] == [(2,), (2,)]


def test_a_network_of_two_inputs_learns(tmp_path: Path) -> None:
    rounds = run((X, Y)).rounds
    assert rounds[-1]["loss"] < rounds[0]["loss"]
    options = {**written(tmp_path), "x": {"numbers": "numbers", "kinds": "kinds"}}
    assert len(run(options).rounds) == 4


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"numbers \(4,\), kind \(2,\).*'kind'"):
        run(({"numbers": NUMBERS, "kind": KINDS}, Y))
    with pytest.raises(UserError, match=r"world.domains .* several inputs \(numbers, kinds\)"):
        run((X, Y), name="domains", domains=["plain", "noisy"])
    with pytest.raises(UserError, match="x has shape .* they need equally many rows"):
        run(({"numbers": NUMBERS, "kinds": KINDS[:5]}, Y))
    with pytest.raises(UserError, match="data.normalize does not go with several inputs"):
        run({**written(tmp_path), "x": {"numbers": "numbers"}, "normalize": "standard"})
    with pytest.raises(UserError, match="no column 'kind' for x.kinds"):
        run({**written(tmp_path), "x": {"kinds": "kind"}})
