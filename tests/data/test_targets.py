"""What y is taken for, as it looks or as it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, checked, load
from shoal.data.targets import answers

X = np.arange(24.0).reshape(12, 2).astype(np.float32)
HALF = np.arange(12) % 2


@pytest.mark.parametrize(
    ("y", "target", "classes"),
    [
        (HALF, "class", 2),
        (HALF.astype(np.float32), "class", 2),
        (np.array(["no", "yes"])[HALF], "class", 2),
        (HALF + 0.5, "number", None),
        (np.stack([HALF, 1 - HALF], 1), "multi_label", 2),
        (np.stack([HALF, 1 - HALF], 1).astype(bool), "multi_label", 2),
        (np.stack([HALF, HALF * 0.3], 1), "number", None),
        (np.stack([HALF, HALF * 3], 1), "token", 4),
        (np.broadcast_to(HALF[:, None, None] * 4, (12, 3, 2)), "dense", 5),
    ],
)
def test_as_it_looks(y: Any, target: str, classes: int | None, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    data = load("files", path=str(tmp_path / "rows.npz"))
    assert (data.target, data.classes) == (target, classes)
    assert data.train.y.is_floating_point() == (target in ("number", "multi_label"))
    assert tuple(data.train.y.shape[1:]) == y.shape[1:]
    assert bool(data.notes) == (target != "class")


def test_several_columns_of_a_table(tmp_path: Path) -> None:
    lines = [f"{i % 5},{i % 2},{i % 3 == 0:d},{i / 7:.3f}" for i in range(30)]
    (tmp_path / "t.csv").write_text("a,p,q,z\n" + "\n".join(lines) + "\n")
    path = str(tmp_path / "t.csv")
    labels = load("files", path=path, y=["p", "q"], x="a", normalize="none")
    assert labels.target == "multi_label" and labels.outputs == 2
    assert set(labels.train.y.flatten().tolist()) == {0.0, 1.0}
    numbers = load("files", path=path, y=["p", "z"], x="a")
    assert numbers.target == "number" and numbers.outputs == 2
    said = load("files", path=path, y=["p", "q"], x="a", target="number")
    assert said.target == "number" and not said.notes
    both = Pool(*(torch.cat([a, b]) for a, b in zip(labels.train, labels.test, strict=True)))
    for row in range(30):  # whichever part a row is in, its labels are its own
        found = both.y[(both.x[:, 0] == row % 5)]
        assert [row % 2, int(row % 3 == 0)] in found.long().tolist()


def test_token_numbers_stay_whole(tmp_path: Path) -> None:
    x = np.arange(60).reshape(12, 5) % 7
    np.savez(tmp_path / "rows.npz", x=x, y=HALF)
    path = str(tmp_path / "rows.npz")
    data = load("files", path=path)
    assert data.train.x.dtype == torch.int64 and data.vocabulary == 7
    assert load("files", path=path, tokens=False).train.x.dtype == torch.float32
    world = {"name": "static", "members": 2, "rounds": 1, "partition": "iid"}
    shoal.run(data={"path": path}, model="mlp", world=world, engine="loop")  # as numbers
    rows = torch.from_numpy(x), torch.from_numpy(HALF)
    found = shoal.run(data=rows, model="mlp", world=world, engine="loop")
    assert any("x is whole numbers, which mlp reads as plain numbers" in n for n in found.notes)
    texts = shoal.run(data={"path": path}, model={"name": "fasttext", "width": 3}, world=world,
                      engine="loop")  # fmt: skip
    assert texts.model["embed.weight"].shape == (7, 3)
    np.savez(tmp_path / "next.npz", x=x[:, :-1], y=x[:, 1:])
    ahead = load("files", path=str(tmp_path / "next.npz"))
    assert ahead.target == "token" and ahead.classes == ahead.vocabulary == 7


def test_classes_that_are_said(tmp_path: Path) -> None:
    y = np.where(HALF == 0, 255, 1)[:, None, None].repeat(2, 1).repeat(2, 2)
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    path = str(tmp_path / "rows.npz")
    assert load("files", path=path, classes=3).outputs == 3
    assert load("files", path=path).outputs == 256


def test_a_missing_answer_is_told_with_its_row() -> None:
    with pytest.raises(UserError, match="column 'y' of here has no value in row 3 .2 such rows"):
        answers([("y", np.array([0.1, 2, np.nan, 1, np.inf]))], None, None, "here")
    with pytest.raises(UserError, match="column 'b' of here has no value in row 1"):
        columns = [("a", np.zeros(2)), ("b", np.array([None, 1], dtype=object))]
        answers(columns, None, None, "here")


@pytest.mark.parametrize(
    ("y", "target", "sentence"),
    [
        (torch.zeros(4), "class", "is made of float32, which does not fit target 'class'"),
        (torch.zeros(4, 2).long(), "class", r"has shape \(4, 2\)"),
        (torch.full((4, 2), 0.5), "multi_label", "has values other than 0 and 1"),
        (torch.zeros(4, 3), "multi_label", "has 3 labels per row, and the data say 2"),
        (torch.zeros(4).long(), "number", "is made of int64"),
        (torch.zeros(4, 2).long(), "dense", r"has shape \(4, 2\)"),
    ],
)
def test_data_from_python_are_what_they_say(y: Any, target: Any, sentence: str) -> None:
    pool = Pool(torch.zeros(4, 3), y)
    with pytest.raises(UserError, match=sentence):
        checked(Dataset("mine", pool, pool, 2, (3,), target=target))


def test_data_without_classes_are_numbers_as_before() -> None:
    pool = Pool(torch.zeros(4, 3), torch.zeros(4))
    assert checked(Dataset("mine", pool, pool, None, (3,))).target == "number"
