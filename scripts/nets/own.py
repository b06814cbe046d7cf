"""Data and networks of the nets that shoal does not bring, as a user would write them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from shoal.data.sources import Dataset, source
from shoal.models import model

try:
    from shoal.core.types import Pool
except ModuleNotFoundError:  # a checkout from before version 0.2's tree
    from shoal.types import Pool

CLASSES = 4


def split(name: str, x: Tensor, y: Tensor, vocabulary: int | None = None) -> Dataset:
    """A tenth of the rows is for testing."""
    cut = len(y) // 10
    train, test = Pool(x[cut:], y[cut:]), Pool(x[:cut], y[:cut])
    return Dataset(name, train, test, CLASSES, tuple(x.shape[1:]), vocabulary=vocabulary)


@source("points")
def points(*, rows: int = 1000, features: int = 64) -> Dataset:
    """Clouds around one centre per class."""
    draw = np.random.default_rng(1)
    y = draw.integers(0, CLASSES, rows)
    x = draw.normal(size=(CLASSES, features))[y] + 3.0 * draw.normal(size=(rows, features))
    return split("points", torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))


@source("tokens")
def tokens(*, rows: int = 400, length: int = 8, words: int = 50) -> Dataset:
    """Texts in which every class prefers words of its own; some end early."""
    draw = np.random.default_rng(2)
    y = draw.integers(0, CLASSES, rows)
    common = draw.integers(1, words, (rows, length))
    own = 1 + (common // CLASSES * CLASSES + y[:, None]) % (words - 1)
    x = np.where(draw.random((rows, length)) < 0.5, own, common)
    x[np.arange(length) >= draw.integers(length // 2, length + 1, rows)[:, None]] = 0
    return split("tokens", torch.from_numpy(x), torch.from_numpy(y), words)


@model("batch_norm_cnn")
class BatchNormCNN(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, 2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


@model("batch_norm_mlp")
class BatchNormMLP(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.layer(x))))
        return out


@model("attention")
class Attention(nn.Module):
    """torch's own encoder; that its samples are row numbers of a table is not said."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, vocabulary: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x)).mean(1))
        return out


@model("torch_lstm")
class TorchLSTM(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, *, vocabulary: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embed(x))[0][:, -1])
        return out


@model("untraceable")
class Untraceable(nn.Module):
    """It looks at a value to decide."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        factor = 2.0 if float(x.sum()) > 300.0 else 1.0
        out: Tensor = self.head(torch.tanh(factor * self.layer(x)))
        return out
