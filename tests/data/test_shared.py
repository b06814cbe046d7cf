"""The public data itself, where it is at hand: counts and values that are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal.data.sources import load

CASES: list[tuple[str, int, int, tuple[int, ...], int, int | None]] = [
    ("mnist", 60_000, 10_000, (1, 28, 28), 10, None),
    ("usps", 7_291, 2_007, (1, 16, 16), 10, None),
    ("cifar100", 10_000, 2_500, (3, 32, 32), 100, None),
    ("svhn", 12_000, 4_000, (3, 32, 32), 10, None),
    ("femnist", 41_258, 4_700, (1, 28, 28), 62, 300),
    ("office_caltech10_surf", 2_027, 506, (800,), 10, 4),
    ("ag_news", 15_600, 7_600, (64,), 4, None),
    ("20newsgroups", 3_000, 1_600, (256,), 20, None),
    ("multi_domain_sentiment", 6_400, 1_600, (128,), 2, 4),
    ("shakespeare", 41_615, 10_046, (80,), 90, 715),
    ("elec2", 36_250, 9_062, (6,), 2, 10),
    ("noaa_weather", 14_528, 3_631, (8,), 2, 10),
    ("gas_sensor", 5_358, 1_339, (128,), 6, 8),
    ("outdoor_objects", 3_200, 800, (21,), 40, 10),
    ("pacs:photo", 1_337, 333, (3, 48, 48), 7, None),
]


@pytest.mark.parametrize(("name", "train", "test", "shape", "classes", "clients"), CASES)
def test_what_is_there(
    shared: Path,
    name: str,
    train: int,
    test: int,
    shape: tuple[int, ...],
    classes: int,
    clients: int | None,
) -> None:
    if not (shared / name.partition(":")[0].replace("gas_sensor", "gas_sensor_drift")).is_dir():
        pytest.skip(f"the folder of public data has no {name}")
    data = load(name)
    assert (len(data.train.y), len(data.test.y)) == (train, test)
    assert data.shape == shape == tuple(data.train.x.shape[1:]) and data.classes == classes
    assert int(data.train.y.min()) >= 0 and int(data.train.y.max()) < classes
    assert (None if data.group is None else len(data.group.unique())) == clients
    if data.vocabulary is not None:
        assert int(data.train.x.max()) < data.vocabulary


def test_mnist_is_in_its_order_and_standard_scale_standardises(shared: Path) -> None:
    data = load("mnist", scale="standard", limit=None)
    assert data.train.y[:3].tolist() == [5, 0, 4] and data.test.y[:3].tolist() == [7, 2, 1]
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-3)
    assert float(data.train.x.std()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["usps", "svhn", "cifar100"])
def test_published_means_and_deviations(shared: Path, name: str) -> None:
    x = load(name, scale="standard").train.x.transpose(0, 1).flatten(1)
    assert torch.allclose(x.mean(1), torch.zeros(len(x)), atol=0.03)
    assert torch.allclose(x.std(1), torch.ones(len(x)), atol=0.03)


def test_the_digit_tasks_agree_in_shape_and_range(shared: Path) -> None:
    for task in ("usps", "svhn", "femnist", "mnist"):
        data = load(f"digit10:{task}", limit=200)
        assert data.shape == (1, 32, 32) and data.classes == 10 and data.group is None
        assert float(data.train.x.min()) >= -1 and float(data.train.x.max()) <= 1
    # White ink on black everywhere but in photographs of houses.
    assert all(load(f"digit10:{t}", limit=200).train.x.mean() < -0.3 for t in ("usps", "femnist"))
