"""Ten networks as people write them, small; each with the rows that it is trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import SmallWorld
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import ResNet
from shoal.core.task import ModuleTask, RowLoss, cross_entropy_rows
from shoal.core.types import Input, Pool, joined_inputs
from shoal.models.adapters import Adapters

CLASSES, LENGTH, WORDS = 3, 5, 7
DOUBLE = torch.float64
Rows = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # inputs and labels of so many


class Perceptron(nn.Module):
    """Dropout as a layer and as a function, a path that is left out by chance; the pair."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(torch.relu(self.first(x)))
        inner = functional.dropout(torch.tanh(self.second(x)), 0.1, self.training)
        if self.training:  # stochastic depth, a row at a time
            inner = inner * torch.bernoulli(torch.full((len(x), 1), 0.8, dtype=x.dtype)) / 0.8
        return self.head(x + inner), x + inner


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, CLASSES),
    )  # fmt: skip


def resnet18() -> nn.Module:
    net = ResNet((4, 8, 8, 16), 2, lambda channels: nn.GroupNorm(2, channels))
    net.head = nn.Linear(16, CLASSES)
    return net


def frozen_body() -> nn.Module:
    """Only the head is trained; the first normalisation rests, the others keep moving."""
    net = ResNet((4, 4, 8), 1, nn.BatchNorm2d).requires_grad_(False)
    net.head = nn.Linear(8, CLASSES)
    net.norm.eval()
    return net


class Encoder(nn.Module):
    """Words, two layers of torch's own transformer, and attention that returns its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Parameter(torch.randn(LENGTH, 8) / 9)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last, self.head = nn.MultiheadAttention(8, 2, dropout=0.2), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layers(self.words(x) + self.places).transpose(0, 1)
        said: Tensor = self.head(self.last(z, z, z)[0].mean(0))
        return said


class NextWord(nn.Module):
    """A GRU over words; the table is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.net = nn.Embedding(WORDS, 6), nn.GRU(6, 6, 2, dropout=0.3)
        self.head = nn.Linear(6, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(self.table(x.t()))[0].transpose(0, 1))
        return found


class Tabular(nn.Module):
    """Numbers and kinds; a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.body = nn.Embedding(4, 3), nn.Linear(4 + 2 * 3, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, numbers: Tensor, kinds: Tensor) -> dict[str, Tensor]:
        x = torch.cat([numbers, self.kinds(kinds).flatten(1)], 1)
        features = functional.dropout(torch.relu(self.norm(self.body(x))), 0.2, self.training)
        return {"features": features, "logits": self.head(features)}


class Dense(nn.Module):
    """Down, up, and across: a class per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.across, self.down = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 2, 2)
        self.up, self.head = nn.ConvTranspose2d(4, 3, 2, 2), nn.Conv2d(6, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = torch.relu(self.across(x))
        deep = functional.dropout2d(torch.relu(self.down(across)), 0.25, self.training)
        found: Tensor = self.head(torch.cat([across, self.up(deep)], 1))
        return found


class Lazy(nn.Module):
    """Layers without sizes, and buffers of its own: a running mean that moves, a constant, and
    whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.LazyLinear(5), nn.LazyLinear(CLASSES)
        self.register_buffer("centre", torch.zeros(5))
        self.register_buffer("spread", torch.tensor(1.5), persistent=False)
        self.register_buffer("order", torch.tensor([4, 2, 0, 1, 3]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
        found: Tensor = self.head(torch.tanh((x - self.centre) / self.spread)[:, self.order])
        return found


class Reversed(torch.autograd.Function):
    """A gradient that turns round, in the older form, which torch.func does not take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return -0.3 * slope


class Packed(nn.Module):
    """Words up to the first 0, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6, padding_idx=0), nn.Linear(8, CLASSES)
        self.net = nn.LSTM(6, 4, 2, batch_first=True, dropout=0.2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 1:] != 0).cumprod(1).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(x), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states = self.net(packed)[1][0]
        found: Tensor = self.head(Reversed.apply(torch.cat([states[-2], states[-1]], 1)))
        return found


def adapted() -> nn.Module:
    """The same, of which adapters are trained alone, on every layer of it."""
    return Adapters(rank=2, alpha=3.0).put_on(Encoder())


def adapted_by_peft() -> nn.Module:
    peft = pytest.importorskip("peft", reason="pip install 'shoal[hf]'")
    layers = ["linear1", "linear2", "head"]
    config = peft.LoraConfig(r=2, lora_alpha=3, lora_dropout=0.1, target_modules=layers)
    return peft.get_peft_model(Encoder(), config)


def features(*shape: int) -> Rows:
    def rows(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, *shape, generator=source, dtype=DOUBLE)
        return x, torch.randint(0, CLASSES, (count,), generator=source)

    return rows


def words(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, WORDS, (count, LENGTH), generator=source)
    return x, torch.randint(0, CLASSES, (count,), generator=source)


def texts(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, WORDS, (count, LENGTH + 1), generator=source)
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def pixels(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 1, 4, 4, generator=source, dtype=DOUBLE)
    return x, torch.randint(0, CLASSES, (count, 4, 4), generator=source)


def table(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    numbers = torch.randn(count, 4, generator=source, dtype=DOUBLE)
    kinds = torch.randint(0, 4, (count, 2), generator=source)
    x, _ = joined_inputs({"numbers": numbers, "kinds": kinds})
    return x, torch.randint(0, CLASSES, (count,), generator=source)


def of_words(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy_rows(logits, y).mean(-1)


def of_pixels(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy_rows(logits.movedim(1, -1), y).mean((-2, -1))


@dataclass(frozen=True)
class Own:
    """A network, its rows and its loss; ``pair`` where it has features of its own, ``gap`` how far
    engines may be apart in float32, of the length of the model."""

    build: Callable[[], nn.Module]
    rows: Rows
    loss: RowLoss = cross_entropy_rows
    pair: bool = False
    inputs: tuple[Input, ...] = ()
    by_autograd: bool = False
    gap: float = 5e-7

    def task(self, world: OwnWorld) -> ModuleTask:
        sample = world.pool.x[:2]
        return ModuleTask(
            self.build, self.loss, CLASSES, world.dtype, draws=True, sample=sample,
            inputs=self.inputs, by_autograd=self.by_autograd, seed=3,
        )  # fmt: skip


TABLE = (Input("numbers", (4,), False), Input("kinds", (2,), True))
NETWORKS: dict[str, Own] = {
    "mlp with dropout": Own(Perceptron, features(6), pair=True),
    "cnn with batch norm and dropout": Own(convolutions, features(1, 8, 8), gap=1e-6),
    "resnet-18 with group norm": Own(resnet18, features(3, 8, 8)),
    "resnet-8, body frozen": Own(frozen_body, features(3, 8, 8), gap=1e-6),
    "transformer with dropout": Own(Encoder, words),
    "transformer with adapters, dropout": Own(adapted, words),
    "transformer with adapters by peft, dropout": Own(adapted_by_peft, words),
    "gru with a tied table": Own(NextWord, texts, of_words),
    "table of two inputs": Own(Tabular, table, pair=True, inputs=TABLE),
    "a class per pixel": Own(Dense, pixels, of_pixels),
    "lazy layers, own buffers": Own(Lazy, features(6)),
    "packed words, dropout": Own(Packed, words, by_autograd=True),
}


@dataclass(frozen=True)
class OwnWorld(SmallWorld):
    """Clients with the rows of a network; no batch of four leaves one row over."""

    own: Own = field(default=NETWORKS["mlp with dropout"])
    clients: int = 3
    rows: tuple[int, ...] = (8, 6, 11)
    dtype: torch.dtype = DOUBLE

    def _pool(self) -> Pool:
        source = torch.Generator().manual_seed(5)
        total = sum(self.rows[i % len(self.rows)] for i in range(self.clients))
        x, y = self.own.rows(2 * total, source)
        return Pool(x.to(self.dtype) if x.is_floating_point() else x, y)

    pool: Any = field(init=False, repr=False, compare=False)
