"""The pretended device, and small data that every network here can be trained on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from devices import pretended
from torch import Tensor

from shoal.data.sources import Dataset
from shoal.data.sources.registry import _ABOUT, _SOURCES, source
from shoal.types import Pool

CLASSES, WORDS = 4, 30


@pytest.fixture(scope="session")
def device() -> str:
    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch lets nobody bring a device in Python")
    return pretended.install()


@pytest.fixture(scope="session", autouse=True)
def data() -> Iterator[None]:
    """Sources ``toy_rows``, ``toy_images`` and ``toy_words``."""
    for made in (toy_rows, toy_images, toy_words):
        source(made.__name__)(made)
    yield
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
