"""Images that are cropped, mirrored and cut out: by hand, and the same on both engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import SmallWorld, play, settings_for
from torch import Tensor, nn
from torch.nn.functional import pad

import shoal
from shoal import catalog
from shoal.core.errors import UserError
from shoal.core.layers.drawing import LayerDraws, step_keys
from shoal.core.task import ModuleTask
from shoal.core.types import Batch
from shoal.data.augment import Augment
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked

KEY = step_keys(0, 0, [3], 0, [1])[0, 0]
WAYS = (Augment(crop=2), Augment(flip=True), Augment(cutout=3), Augment(2, True, 4))


def by_hand(augment: Augment, x: Tensor, numbers: Tensor) -> Tensor:
    """One image: slices of a larger one, turned round, a square of zeros."""
    _, height, width = x.shape
    down, right, coin, cy, cx = numbers.tolist()
    many, p = 2 * augment.crop + 1, augment.crop
    top, left = int(down * many), int(right * many)
    x = pad(x, (p, p, p, p))[:, top : top + height, left : left + width]
    if augment.flip and coin < 0.5:
        x = x.flip(-1)
    x, half = x.clone(), augment.cutout // 2
    y0, x0 = int(cy * height) - half, int(cx * width) - half
    y1, x1 = y0 + augment.cutout, x0 + augment.cutout
    x[:, max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)] = 0
    return x


@pytest.mark.parametrize("augment", WAYS, ids=str)
def test_by_hand(augment: Augment) -> None:
    x = torch.randn(40, 2, 7, 5)
    found = augment(Batch(x, torch.zeros(40), None, KEY)).x
    numbers = LayerDraws(KEY, 40, first=-1).uniform((40, 5), torch.float64)
    expected = [by_hand(augment, image, own) for image, own in zip(x, numbers, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert not torch.equal(found, augment(Batch(x, torch.zeros(40), None, KEY + 1)).x)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 3))


def convolution() -> nn.Module:
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(16, 3))


@pytest.mark.parametrize("build", [small, convolution], ids=["stacked", "alone"])
@pytest.mark.parametrize("rows", [(8,), (12, 7, 6)], ids=["equal", "unequal"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "moon"])
def test_engines_agree(build: Any, rows: tuple[int, ...], method: str) -> None:
    world = SmallWorld(rows=rows, features=(2, 4, 4), dtype=torch.float64)
    task = ModuleTask(build, classes=3, dtype=torch.float64, draws_by_row=True)
    plain = settings_for(catalog.METHODS[method](), world, task)
    object.__setattr__(plain.program, "augment", Augment(1, True, 1))
    engine = Stacked(threads=1)
    loop, stacked = (play(plain, one, 2)[0].models[0].theta for one in (Loop(), engine))
    assert float((loop - stacked).norm() / loop.norm()) < 1e-9
    assert not [note for note in engine.notes if "one by one" in note]


def asked(**local: Any) -> shoal.Result:
    data = local.pop("data", {"name": "digits", "flat": False})
    model = "linear" if data == "digits" else "small_cnn"
    world = {"name": "static", "members": 3, "rounds": 2, "partition": "iid"}
    return shoal.run(data=data, model=model, world=world, local=local, seed=1)


def test_in_a_config() -> None:
    one, other, plain = (
        asked(augment=a).rounds[-1]["loss"]
        for a in ([{"crop": 1}, "flip"], [{"cutout": 2}], "none")
    )
    assert len({one, other, plain}) == 3


@pytest.mark.parametrize(
    "augment, sentence",
    [
        (["mirror"], "local.augment.* must be none, or some of flip"),
        ([{"crop": 0}], "local.augment.* must be"),
        (["flip", "flip"], "local.augment must be none, or some of flip"),
        ([], "local.augment must be none, or some of flip"),
        ([{"crop": 8}], "local.augment: crop is 8, and images of 8x8 need less than 8"),
    ],
)
def test_refused(augment: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        asked(augment=augment)


def test_samples_that_are_no_images() -> None:
    with pytest.raises(UserError, match=r"local.augment is for images .* shape \(64,\)"):
        asked(data="digits", augment=["flip"])
