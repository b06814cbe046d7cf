"""The pretended device, and small data that every network here can be trained on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from devices import pretended
from torch import Tensor, nn

from shoal.core.types import Pool
from shoal.data.dataset import _ABOUT, _SOURCES, source
from shoal.data.sources import Dataset
from shoal.models.registry import _MODELS, model

CLASSES, WORDS = 4, 30


@pytest.fixture(scope="session")
def device() -> str:
    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch lets nobody bring a device in Python")
    name = pretended.install()
    weight = torch.ones(1, device=name, requires_grad=True)
    try:  # torch counts the devices at the first gradient of a process
        (weight * 2).sum().backward()
    except RuntimeError:
        pytest.exit("tests/devices needs a process of its own: pytest tests/devices", returncode=4)
    return name


@pytest.fixture(scope="session", autouse=True)
def data() -> Iterator[None]:
    """Sources ``toy_rows``, ``toy_images`` and ``toy_words``; the model ``toy_cnn``."""
    for made in (toy_rows, toy_images, toy_words):
        source(made.__name__)(made)
    model("toy_cnn")(ToyCnn)
    yield
    _MODELS.pop("toy_cnn")
    for made in (toy_rows, toy_images, toy_words):
        _SOURCES.pop(made.__name__), _ABOUT.pop(made.__name__, None)


def _dataset(name: str, x: Tensor, vocabulary: int | None = None) -> Dataset:
    y = torch.randint(0, CLASSES, (len(x),), generator=torch.Generator().manual_seed(2))
    train, test = (Pool(x[part], y[part]) for part in (slice(40, None), slice(0, 40)))
    return Dataset(name, train, test, CLASSES, tuple(x.shape[1:]), vocabulary=vocabulary)


def toy_rows() -> Dataset:
    x = torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
    return _dataset("toy_rows", x)


def toy_images() -> Dataset:
    x = torch.randn(160, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return _dataset("toy_images", x)


def toy_words() -> Dataset:
    x = torch.randint(1, WORDS, (160, 5), generator=torch.Generator().manual_seed(1))
    return _dataset("toy_words", x, WORDS)


class ToyCnn(nn.Module):
    """Convolution, batch normalisation, and a buffer of whole numbers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4 * 4 * 4, classes)
        self.register_buffer("turned", torch.arange(3, -1, -1))

    def forward(self, x: Tensor) -> Tensor:
        maps = nn.functional.max_pool2d(torch.relu(self.body(x)), 2)
        return self.head(maps.index_select(1, self.turned).flatten(1))
