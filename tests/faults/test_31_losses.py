"""Losses and targets that do not fit: one sentence before the first round, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import Tensor
from torch.nn import functional as F

from shoal.cli import call

HERE = "faults.test_31_losses"


def matrix(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, :, None] - outputs[:, None]


def vector(outputs: Tensor, targets: Tensor) -> Tensor:
    """As many numbers as there are classes, and rows when it is tried."""
    return outputs.new_ones(8) * outputs.sum()


def contrasting(outputs: Tensor, targets: Tensor) -> Tensor:
    """Rows are compared with each other."""
    return (outputs - outputs.mean(0)).square().sum(-1)


def pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    found = F.cross_entropy(outputs, targets, reduction="none", ignore_index=-1)
    return found.flatten(1).mean(1)


def mixing(outputs: Tensor, targets: Tensor) -> Tensor:
    """Rows do not count the same: it is no mean over rows."""
    return F.cross_entropy(outputs, targets, reduction="sum")


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that counts classes: of rows of one class it looks like one over rows."""
    return F.cross_entropy(outputs, targets, weight=outputs.new_tensor([1.0, 5.0, 2.0]))


def no_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.detach(), targets)


def one_argument(outputs: Tensor) -> Tensor:
    return outputs.sum(-1)


def nothing(outputs: Tensor, targets: Tensor) -> None:
    return None


def data_of(kind: str) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((60, 6)).astype(np.float32)
    y: Any = np.arange(60) % 3
    if kind == "labels":
        y = np.stack([y == 0, y == 1], 1).astype(int)
    elif kind == "numbers":
        y = x[:, 0] + 0.5
    elif kind == "nan":
        y = np.where(np.arange(60) == 4, np.nan, x[:, 0])
    elif kind == "sorted":
        y = np.sort(y)
    elif kind == "pixels":
        x, y = x.reshape(60, 1, 2, 3).repeat(2, 3), draw.integers(0, 3, (60, 2, 6))
    elif kind == "void":
        x, y = x.reshape(60, 1, 2, 3).repeat(2, 3), draw.integers(-1, 3, (60, 2, 6))
    elif kind == "tokens":
        x, y = draw.integers(0, 9, (60, 6)), draw.integers(0, 9, (60, 6))
    held = np.arange(60) % 4 == 0
    if kind == "unknown":
        y, held = np.where(np.arange(60) == 8, 7, y), np.arange(60) % 4 == 0
    return {"x": x, "y": y, "held": held}


CLASSES = {"path": "FILE", "test": "held"}
DRIFT = {"name": "drift", "members": 3, "rounds": 4, "drift": {"kind": "sudden", "at": 2}}
# what the rows are, what the config says besides, and the sentence
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a loss of numbers": ("classes", {"loss": "mse"}, "loss: mse does not fit y, which is one "
                          "class per row (target: class); write cross_entropy"),
    "a loss of classes": ("numbers", {"loss": "cross_entropy"}, "write mse or mae or huber"),
    "a loss nobody knows": ("classes", {"loss": "cross_entropi"}, "did you mean 'cross_entropy'?"),
    "a setting nobody knows": ("classes", {"loss": {"gamma": 2}}, "loss: 'gamma' is not known"),
    "a setting of another": ("numbers", {"loss": {"label_smoothing": 0.1}},
                             "loss.label_smoothing is read by cross_entropy, and the loss"),
    "a matrix": ("classes", {"loss": f"{HERE}:matrix"}, "returns a tensor of shape (8, 3, 3)"),
    "a vector": ("classes", {"loss": f"{HERE}:vector"}, "so rows of a batch are mixed"),
    "rows beside each other": ("classes", {"loss": f"{HERE}:contrasting"}, "rows of a batch are"),
    "a sum": ("classes", {"loss": f"{HERE}:mixing"}, "its rows do not count the same"),
    "a mean by classes": ("sorted", {"loss": f"{HERE}:weighted"}, "its rows do not count the same"),
    "no gradient": ("classes", {"loss": f"{HERE}:no_gradient"}, "its result has no gradient"),
    "signature": ("classes", {"loss": f"{HERE}:one_argument"}, "takes 1 positional argument"),
    "an option too many": ("classes", {"loss": {"name": f"{HERE}:matrix", "gamma": 2}},
                           "unexpected keyword argument 'gamma'"),
    "nothing": ("classes", {"loss": f"{HERE}:nothing"}, "and returns None"),
    "no such name": ("classes", {"loss": f"{HERE}:no_such"}, "has no 'no_such'"),
    "no such module": ("classes", {"loss": "no_such_module:f"}, "not installed, nor in"),
    "NaN": ("nan", {"data": {**CLASSES, "target": "number"}}, "column 'y' of"),
    "an unknown class": ("unknown", {}, "class 7 in row 9, a test row, and in no training row"),
    "labels that are none": ("numbers", {"data": {**CLASSES, "target": "token"}},
                             "has shape () per row"),
    "void without a word": ("void", {"model": "small_unet", "data": {**CLASSES, "target": "dense"}},
                            "label -1 in row"),
    "void and a loss of one's own": ("void", {
        "model": "small_unet", "data": {**CLASSES, "target": "dense"}, "loss": f"{HERE}:pixels"},
        "label -1 in row"),
    "pixels of an mlp": ("pixels", {}, "model 'mlp' gives one answer per row, and y of 'files' is "
                         "a class per pixel; take small_unet"),
    "tokens of an mlp": ("tokens", {}, "take transformer, char_lstm or word_lstm"),
    "a class of a unet": ("classes", {"model": "small_unet"}, "gives answers per pixel, and y"),
    "a metric of classes": ("numbers", {"evaluate": {"metrics": ["auc"]}},
                            "auc does not fit 'files', whose y is numbers; write r2, rmse, mae"),
    "drift of labels": ("labels", {"world": DRIFT}, "'drift' is for rows with one class each"),
    "classes that come": ("numbers", {"world": {"name": "classes", "members": 3}},
                          "world 'classes' is for rows with one class each, and y of 'files' is "
                          "numbers"),
    "masks that would stay": ("pixels", {"model": "small_unet", "world": {
        "name": "domains", "members": 3, "domains": ["plain", "mirrored"]}}, "'mirrored' moves"),
    "classes that would stay": ("pixels", {"model": "small_unet", "local": {"augment": ["flip"]}},
                                "local.augment: crop and flip would move pixels of images"),
    "label skew": ("numbers", {"world": {"name": "static", "members": 3, "rounds": 1,
                                         "partition": "dirichlet"}}, "partition 'dirichlet' deals"),
    "prototypes": ("numbers", {"method": "fedgh"}, "PrototypeHeader is for one class per row"),
    "a GAN": ("labels", {"method": "fedcil"}, "GanReplay is for one class per row"),
    "contrast of pixels": ("pixels", {"model": "small_unet", "method": "moon"}, "ModelContrast is"),
    "weights of others": ("labels", {"loss": {"class_weights": [1.0]}}, "has 1 numbers"),
    "a target nobody knows": ("classes", {"data": {**CLASSES, "target": "clas"}}, "did you mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, more, sentence = CASES[name]
    np.savez(tmp_path / "rows.npz", **data_of(kind))
    config = {
        "model": {"name": "mlp", "hidden": 4},
        "world": {"name": "static", "members": 3, "rounds": 1},
        "data": CLASSES,
        **more,
    }
    text = yaml.safe_dump(config).replace("FILE", str(tmp_path / "rows.npz"))
    (tmp_path / "config.yaml").write_text(text)
    assert call(["run", str(tmp_path / "config.yaml"), "-o", str(tmp_path / "a")]) == 2
    said = [s for s in capsys.readouterr().err.splitlines() if not s.startswith("shoal: runs code")]
    assert len(said) == 1 and sentence in said[0], said
    assert not (tmp_path / "a").exists()
