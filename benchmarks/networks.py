"""Networks that people train, written as people write them; nothing here knows of shoal.

Dropout is left out where contestants are compared: each would have to draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, norm(after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class ResNet(nn.Module):
    """For 3x32x32 images: a 3x3 stem, stages of ``depth`` blocks that double the width."""

    def __init__(self, widths: tuple[int, ...], depth: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = norm(widths[0])
        blocks, before = [], widths[0]
        for stage, width in enumerate(widths):
            for index in range(depth):
                blocks.append(Residual(before, width, 2 if stage and not index else 1, norm))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.blocks(F.relu(self.norm(self.stem(x))))
        result: Tensor = self.head(maps.mean((2, 3)))
        return result


class Inverted(nn.Module):
    """MobileNet v2's block: widen by 4, a 3x3 convolution per channel, narrow; BatchNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.layers = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.same = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.layers(x)
        return x + inner if self.same else inner


class MobileNet(nn.Module):
    """For 3x32x32 images: a stem of 16 channels, six inverted residuals, a head of 128."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2))
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
        )
        self.blocks = nn.Sequential(*(Inverted(*shape) for shape in shapes))
        self.last = nn.Sequential(
            nn.Conv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU6()
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))
        return result


class OwnAttention(nn.Module):
    """Attention of every token to every token by ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int, drop: float = 0.0) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        split = self.into(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        drop = self.drop if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        result: Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return result


class TorchAttention(nn.Module):
    """The same by ``nn.MultiheadAttention``."""

    def __init__(self, width: int, heads: int, drop: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, drop, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return result


class Layer(nn.Module):
    """A layer of a transformer, normalised before attention and before its two products; dropout
    after both, between the products, and of attention."""

    def __init__(self, width: int, heads: int, attention: nn.Module, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        between = [nn.GELU(), nn.Dropout(drop)] if drop else [nn.GELU()]
        wide = nn.Linear(width, 4 * width), *between, nn.Linear(4 * width, width)
        self.wide, self.drop = nn.Sequential(*wide), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        result: Tensor = x + self.drop(self.wide(self.norm2(x)))
        return result


def layers(kind: str, width: int, heads: int, depth: int, drop: float = 0.0) -> nn.Module:
    """``own`` attention, torch's (``mha``), or all of it as ``nn.TransformerEncoder``."""
    if kind != "encoder":
        attention = OwnAttention if kind == "own" else TorchAttention
        made = (Layer(width, heads, attention(width, heads, drop), drop) for _ in range(depth))
        return nn.Sequential(*made)
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=drop, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class TextTransformer(nn.Module):
    """Classes of texts of 64 words: embeddings, positions, two layers, the mean, the head."""

    def __init__(
        self, kind: str = "own", words: int = 1000, length: int = 64, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 128)
        self.place = nn.Parameter(0.02 * torch.randn(length, 128))
        self.layers, self.drop = layers(kind, 128, 4, 2, drop), nn.Dropout(drop)
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.layers(self.drop(self.embed(x) + self.place))
        result: Tensor = self.head(self.norm(inner).mean(1))
        return result


class VisionTransformer(nn.Module):
    """For 3x32x32 images: patches of 4x4, positions, four layers, the mean, the head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(64, 128))
        self.layers = layers("own", 128, 4, 4)
        self.norm = nn.LayerNorm(128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.layers(self.patches(x).flatten(2).transpose(1, 2) + self.place)
        result: Tensor = self.head(self.norm(inner).mean(1))
        return result


class NextCharacter(nn.Module):
    """The character after 60 others: embedding of 8, one recurrent layer of 128, the head."""

    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(90, 8)
        self.recurrent = recurrent(8, 128, batch_first=True)
        self.head = nn.Linear(128, 90)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.embed(x))
        result: Tensor = self.head(hidden[:, -1])
        return result


class BagOfWords(nn.Module):
    """The mean of 64 of 20,000 embeddings, a hidden layer, four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20_000, 64)
        self.hidden = nn.Linear(64, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(F.relu(self.hidden(self.embed(x).mean(1))))
        return result


def perceptron(*sizes: int, norm: bool = False) -> nn.Sequential:
    """Linear layers with rectifiers between them, and BatchNorm before those if asked."""
    found: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        found += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else [])]
        found.append(nn.ReLU())
    return nn.Sequential(*found[: -2 if norm else -1])
