"""Data sets load the same every time, and bad ones are refused by name and row."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data import dataset
from shoal.data.sources import Dataset, load, names, source


@dataclass(frozen=True)
class Bad:
    part: str
    value: float


def test_digits_are_scaled_stratified_and_always_the_same() -> None:
    data, again = load("digits"), load("digits")
    assert (len(data.train.x), len(data.test.x)) == (1437, 360)
    assert data.classes == 10 and data.shape == (64,) and data.group is None
    assert data.train.x.dtype == torch.float32 and data.train.y.dtype == torch.int64
    assert data.train.x.min() == 0 and data.train.x.max() == 1
    assert torch.equal(data.train.x, again.train.x) and torch.equal(data.test.y, again.test.y)
    share = data.train.y.bincount() / (data.train.y.bincount() + data.test.y.bincount())
    assert torch.allclose(share, torch.full((10,), 0.8), atol=0.01)


def test_digits_are_split_as_scikit_learn_does_it() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16.0, y, test_size=0.2, random_state=0, stratify=y)
    data = load("digits")
    found = (data.train.x, data.test.x, data.train.y, data.test.y)
    for ours, theirs in zip(found, parts, strict=True):
        assert torch.equal(ours, torch.as_tensor(theirs).to(ours.dtype))


def test_digits_do_not_wait_for_scikit_learn() -> None:
    code = "import sys, shoal.data.sources as d; d.load('digits'); print('sklearn' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_digits_as_images_are_the_same_digits() -> None:
    flat, images = load("digits"), load("digits", flat=False)
    assert images.shape == (1, 8, 8) and images.train.x.shape == (1437, 1, 8, 8)
    assert torch.equal(images.train.x.flatten(1), flat.train.x)


def test_synthetic_splits_each_client_and_names_it() -> None:
    data = load("synthetic", alpha=1.0, beta=1.0, clients=12, seed=3)
    assert data.shape == (60,) and data.classes == 10
    assert data.group is not None and data.test_group is not None
    assert len(data.group) == len(data.train.x) and len(data.test_group) == len(data.test.x)
    train, test = data.group.bincount(), data.test_group.bincount()
    total = train + test
    assert len(total) == 12 and total.min() >= 50
    assert torch.equal(train, (total * 0.9 + 1e-9).floor().long())
    assert (
        data.train.x.dtype == torch.float32 and 0 <= data.train.y.min() <= data.train.y.max() < 10
    )


def test_synthetic_client_is_a_function_of_seed_and_number() -> None:
    few, many = load("synthetic", clients=3, seed=1), load("synthetic", clients=5, seed=1)
    assert torch.equal(few.train.x, many.train.x[: len(few.train.x)])
    assert not torch.equal(few.train.y[:40], load("synthetic", clients=3, seed=2).train.y[:40])


def test_synthetic_inputs_have_the_variances_of_the_paper() -> None:
    data = load("synthetic", clients=40, seed=0)
    assert data.group is not None
    largest = int(data.group.bincount().argmax())
    variance = data.train.x[data.group == largest].var(0)
    wanted = torch.arange(1, 61) ** -1.2
    assert torch.allclose(variance / wanted, torch.ones(60), atol=0.25)


def test_beta_spreads_the_inputs_between_clients() -> None:
    def spread(beta: float) -> float:
        data = load("synthetic", beta=beta, clients=30)
        assert data.group is not None
        means = torch.stack([data.train.x[data.group == k].mean() for k in range(30)])
        return float(means.std())

    assert spread(0.0) < 0.3 < spread(2.0)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("digit", {}, "unknown data set 'digit'; did you mean 'digits'"),
        ("zzz", {}, "unknown data set 'zzz'; known are .*digits, .*synthetic"),
        ("digits", {"flatt": True}, "no option 'flatt'; did you mean 'flat'"),
        ("synthetic", {"alpha": -1.0}, "alpha.*not -1.0"),
        ("synthetic", {"beta": math.nan}, "beta.*not nan"),
        ("synthetic", {"clients": 0}, "clients.*at least 1, not 0"),
        ("synthetic", {"clients": 2.5}, "clients.*not 2.5"),
        ("synthetic", {"seed": -1}, "seed.*not -1"),
    ],
)
def test_bad_requests_are_refused(name: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(name, **options)


@pytest.mark.parametrize("bad", [Bad("train", math.nan), Bad("test", math.inf)])
def test_values_that_are_not_finite_are_refused(bad: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_SOURCES", dict(dataset._SOURCES))

    @source("broken")
    def broken() -> Dataset:
        pools = {p: Pool(torch.zeros(9, 2, 2), torch.zeros(9).long()) for p in ("train", "test")}
        pools[bad.part].x[4, 1, 0] = bad.value
        pools[bad.part].x[7] = bad.value
        return Dataset("broken", pools["train"], pools["test"], 2, (2, 2))

    assert "broken" in names()
    with pytest.raises(UserError, match=f"'broken'.*row 4 of its {bad.part}.*2 such rows"):
        load("broken")


def test_two_sources_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="digits"):

        @source("digits")
        def other() -> Dataset:
            raise NotImplementedError
