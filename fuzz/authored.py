"""Networks as somebody writes them by hand: functional calls, shared weights, habits of years.

Each takes samples of one kind (``flat``, ``image``, ``series``, ``text``) and is drawn by number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]
Draw = random.Random


class Functional(nn.Module):
    """Parameters without layers, and every call functional."""

    def __init__(self, width: int, classes: int, draw: Draw) -> None:
        super().__init__()
        hidden = draw.choice((2, 5, 8))
        self.weights = nn.ParameterList(
            [0.3 * torch.randn(hidden, width), 0.3 * torch.randn(classes, hidden)]
        )
        self.extra = nn.ParameterDict({"gain": torch.ones(hidden), "shift": torch.zeros(hidden)})
        self.way = draw.choice(("layer", "batch", "einsum", "unit"))

    def forward(self, x: Tensor) -> Tensor:
        gain, shift = self.extra["gain"], self.extra["shift"]
        x = F.linear(x.flatten(1), self.weights[0])
        if self.way == "layer":
            x = F.layer_norm(x, x.shape[1:], gain, shift)
        elif self.way == "batch":
            x = F.batch_norm(x, None, None, gain, shift, training=True)
        elif self.way == "unit":
            x = F.normalize(x, dim=1) * gain + shift
        else:
            x = torch.einsum("nd,d->nd", x, gain) + shift
        x = F.dropout(F.relu(x, inplace=True), 0.5, training=False)
        return torch.einsum("nd,cd->nc", x, self.weights[1])


class Shared(nn.Module):
    """One layer applied several times, and a decoder that is the encoder's transpose."""

    def __init__(self, width: int, classes: int, draw: Draw) -> None:
        super().__init__()
        hidden = draw.choice((3, 6))
        self.into, self.turn = nn.Linear(width, hidden), nn.Linear(hidden, hidden)
        self.same = self.turn if draw.random() < 0.5 else nn.Linear(hidden, hidden)
        self.same.weight = self.turn.weight
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.into(x.flatten(1)))
        for layer in (self.turn, self.same, self.turn):
            h = h + self.norm(F.gelu(layer(h)))
        back = F.linear(h, self.into.weight.t())
        return self.head(back), h


class Gated(nn.Module):
    """Splits, gates, a mixture of experts and what users do with indices."""

    def __init__(self, width: int, classes: int, draw: Draw) -> None:
        super().__init__()
        hidden = draw.choice((4, 6))
        self.into = nn.Linear(width, 2 * hidden)
        self.experts = nn.ModuleList(nn.Linear(hidden, classes) for _ in range(3))
        self.gate = nn.Linear(hidden, 3, bias=False)
        self.way = draw.choice(("softmax", "top", "hard"))
        self.register_buffer("scale", torch.tensor(1.0 / math.sqrt(hidden)))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.into(x.flatten(1)).chunk(2, dim=-1)
        h = a * torch.sigmoid(b)
        scores = self.gate(h) * self.scale  # type: ignore[operator]
        if self.way == "top":
            kept = scores.topk(2, dim=1)
            scores = torch.full_like(scores, -1e9).scatter(1, kept.indices, kept.values)
        if self.way == "hard":
            best = scores.argmax(1, keepdim=True)
            scores = torch.zeros_like(scores).scatter(1, best, 1.0) + scores - scores.detach()
        else:
            scores = scores.softmax(1)
        outs = torch.stack([expert(h) for expert in self.experts], 1)
        return (scores.unsqueeze(-1) * outs).sum(1)


class Residuals(nn.Module):
    """A small residual network: batch or group statistics, a shortcut, squeeze and excite."""

    def __init__(self, channels: int, classes: int, draw: Draw) -> None:
        super().__init__()
        wide, group = draw.choice((4, 6, 8)), draw.random() < 0.4
        norm: Callable[[int], nn.Module] = (
            (lambda n: nn.GroupNorm(2, n)) if group else nn.BatchNorm2d
        )
        self.stem = nn.Conv2d(channels, wide, 3, padding=1, bias=False)
        self.one, self.two = norm(wide), norm(wide)
        stride = draw.choice((1, 2))
        self.conv = nn.Conv2d(
            wide, wide, 3, stride, padding=draw.choice((1, 2)), dilation=1, bias=group
        )
        self.short = nn.Conv2d(wide, wide, 1, stride)
        self.squeeze = nn.Linear(wide, wide) if draw.random() < 0.5 else None
        self.up = nn.ConvTranspose2d(wide, wide, 2, 2) if draw.random() < 0.3 else None
        self.head = nn.Linear(2 * wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(self.stem(x)), inplace=True)
        y = self.two(self.conv(x))
        if self.squeeze is not None:
            y = y * torch.sigmoid(self.squeeze(y.mean((2, 3))))[:, :, None, None]
        short = self.short(x)
        y = F.interpolate(y, size=short.shape[-2:], mode="nearest")
        y = (y + short).relu_()
        if self.up is not None:
            y = self.up(y)
        y = torch.cat([F.adaptive_avg_pool2d(y, 1), F.adaptive_max_pool2d(y, 1)], 1)
        return self.head(y.flatten(1))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Branches that are concatenated, a pool with its own padding, a dilated convolution."""

    def __init__(self, channels: int, classes: int, draw: Draw) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, 3, 1)
        self.b = nn.Conv2d(channels, 4, 3, padding=2, dilation=2)
        self.c = nn.Conv2d(channels, 2, (1, 3), padding=(0, 1))
        self.norm = draw.choice(
            (nn.BatchNorm2d(9), nn.GroupNorm(3, 9), nn.InstanceNorm2d(9, affine=True))
        )
        self.act = draw.choice((nn.ReLU(), nn.SiLU(), nn.Hardswish(), nn.PReLU(9)))
        self.head = nn.Conv2d(9, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.a(x), self.b(x), self.c(x)], dim=1)
        y = F.avg_pool2d(self.act(self.norm(y)), 2, ceil_mode=True)
        return self.head(y).flatten(2).mean(-1)  # type: ignore[no-any-return]


class Cells(nn.Module):
    """A recurrence written as a loop over cells, from a state of zeros or a learnt one."""

    def __init__(self, features: int, classes: int, draw: Draw) -> None:
        super().__init__()
        self.hidden = draw.choice((2, 4))
        self.long = draw.random() < 0.5
        self.cell: nn.Module = (nn.LSTMCell if self.long else nn.GRUCell)(features, self.hidden)
        self.start = nn.Parameter(torch.zeros(self.hidden)) if draw.random() < 0.5 else None
        self.head = nn.Linear(self.hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = (
            x.new_zeros(len(x), self.hidden)
            if self.start is None
            else self.start.expand(len(x), -1)
        )
        c = torch.zeros_like(h)
        for now in x.unbind(1):
            if self.long:
                h, c = self.cell(now, (h, c))
            else:
                h = self.cell(now, h)
        return self.head(h)  # type: ignore[no-any-return]


class Layered(nn.Module):
    """``nn.LSTM`` or ``nn.GRU`` with a given start, attention over its outputs, a norm."""

    def __init__(self, features: int, classes: int, draw: Draw) -> None:
        super().__init__()
        self.long, self.hidden = draw.random() < 0.5, draw.choice((2, 4))
        kind: Any = nn.LSTM if self.long else nn.GRU
        options = {"proj_size": 1} if self.long and draw.random() < 0.2 else {}
        self.net = kind(features, self.hidden, 2, batch_first=True, **options)
        self.out = options.get("proj_size", self.hidden)
        self.norm, self.score = nn.LayerNorm(self.out), nn.Linear(self.out, 1)
        self.head = nn.Linear(self.out, classes)
        self.given = draw.random() < 0.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state: Any = None
        if self.given:
            h = torch.zeros(2, len(x), self.out, dtype=x.dtype, device=x.device)
            c = torch.zeros(2, len(x), self.hidden, dtype=x.dtype, device=x.device)
            state = (h, c) if self.long else h
        out, _ = self.net(x, state)
        out = self.norm(out)
        share = torch.softmax(self.score(out), 1)
        features = (share * out).sum(1)
        return self.head(features), features


def waves(length: int, width: int) -> Tensor:
    """Positions as sines and cosines."""
    place = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    found = torch.zeros(1, length, width)
    found[0, :, 0::2], found[0, :, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return found


class Transformer(nn.Module):
    """Tokens, positions of one kind or another, masks, a head that may be the table again."""

    def __init__(self, words: int, length: int, classes: int, draw: Draw) -> None:
        super().__init__()
        width, heads = draw.choice((4, 8)), 2
        self.table = nn.Embedding(words, width)
        self.way = draw.choice(("waves", "learnt", "rows"))
        if self.way == "learnt":
            self.places: Any = nn.Embedding(length, width)
            self.register_buffer("ids", torch.arange(length).unsqueeze(0))
        else:
            self.register_buffer("places", waves(length, width), persistent=self.way == "waves")
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.register_buffer("mask", mask, persistent=False)
        self.masked = draw.choice(("no", "causal", "by hand"))
        self.stack = draw.random() < 0.4
        if self.stack:
            layer = nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=False
            )
            self.body: nn.Module = nn.TransformerEncoder(
                layer, draw.choice((1, 2)), enable_nested_tensor=False
            )
        else:
            self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width, bias=False)
            self.norm = nn.LayerNorm(width)
        self.tied = draw.random() < 0.3
        self.head = nn.Linear(words if self.tied else width, classes)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(self.ids) if self.way == "learnt" else self.places
        h = self.table(x) * math.sqrt(self.table.embedding_dim) + places
        if self.stack:
            h = self.body(h, mask=self.mask if self.masked != "no" else None)
        else:
            q, (k, v) = self.q(h), self.kv(h).chunk(2, -1)
            if self.masked == "by hand":
                scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
                scores = scores.masked_fill(self.mask, float("-inf"))  # type: ignore[arg-type]
                found = torch.softmax(scores, -1) @ v
            else:
                causal = self.masked == "causal"
                found = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            h = self.norm(h + found)
        h = h.mean(1)
        return self.head(h @ self.table.weight.t() if self.tied else h)  # type: ignore[no-any-return]


class Bags(nn.Module):
    """Two tables, one of them used twice; padding is left out of a mean by hand."""

    def __init__(self, words: int, classes: int, draw: Draw) -> None:
        super().__init__()
        width = draw.choice((2, 4))
        self.one = nn.Embedding(words, width, padding_idx=0)
        self.two = self.one if draw.random() < 0.4 else nn.Embedding(words, width)
        self.conv = nn.Conv1d(width, 5, 3, padding=1)
        self.head = nn.Linear(5 + width, classes)

    def forward(self, x: Tensor) -> Tensor:
        real = (x != 0).unsqueeze(-1).to(self.one.weight.dtype)
        mean = (self.one(x) * real).sum(1) / real.sum(1).clamp(min=1.0)
        grams = F.relu(self.conv(self.two(x).transpose(1, 2))).amax(-1)
        return self.head(torch.cat([mean, grams], -1))  # type: ignore[no-any-return]


FLAT = (Functional, Shared, Gated)
IMAGES = (Residuals, Branches)
SERIES = (Cells, Layered)


def authored(shape: Shape, classes: int, draw: Draw, words: int) -> nn.Module:
    """A network that takes samples of this shape."""
    if words:
        if draw.random() < 0.6:
            return Transformer(words, shape[0], classes, draw)
        return Bags(words, classes, draw)
    if len(shape) == 3:
        return draw.choice(IMAGES)(shape[0], classes, draw)
    if len(shape) == 2:
        return draw.choice(SERIES)(shape[1], classes, draw)
    return draw.choice(FLAT)(prod(shape), classes, draw)
