"""Networks by family and seed, as users write them: odd sizes, layers and habits.

The model ``fuzz`` is known to configs as any other: ``model: {name: fuzz, family: mlp, draw: 7}``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fuzz.authored import authored
from shoal.models import model

Shape = tuple[int, ...]
Draw = random.Random

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 16, 17)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, lambda: nn.GELU("tanh"), nn.SiLU, nn.ELU, nn.CELU,
    nn.SELU, nn.LeakyReLU, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
    nn.ReLU6, nn.Mish, nn.PReLU, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Identity,
    lambda: nn.ReLU(inplace=True), lambda: nn.Threshold(0.1, -0.2), lambda: nn.Softmax(1),
    lambda: Function(torch.sin), lambda: Function(torch.square), lambda: Function(torch.atan),
    lambda: Function(lambda x: x * torch.sigmoid(1.7 * x)),
    lambda: Function(lambda x: torch.where(x > 0, x, 0.3 * x)),
    lambda: Function(lambda x: x.clamp(-1.0, 1.5)), lambda: Function(lambda x: x.abs().add_(0.1)),
)  # fmt: skip


DRAWING: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Dropout(0.5), lambda: nn.Dropout(0.1, inplace=True), lambda: nn.AlphaDropout(0.3),
    nn.RReLU,
)  # fmt: skip


class Function(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """``x + f(x)``, with a scale of its own where asked for."""

    def __init__(self, inner: nn.Module, scaled: bool) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(0.7)) if scaled else None  # of no dimension

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return x + (found if self.scale is None else self.scale * found)


class Centred(nn.Module):
    """What mixes the rows of a batch: its mean, its spread, or attention over it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "mean":
            return x - x.mean(0)
        if self.way == "spread":
            return x / (1.0 + x.pow(2).mean(0, keepdim=True).sqrt())
        return x + torch.softmax(0.1 * x @ x.t(), 1) @ x


class Standardised(nn.Module):
    """Constants of a user's: floating buffers (kept with the model), and one of whole numbers."""

    def __init__(self, width: int, draw: Draw) -> None:
        super().__init__()
        numbers = torch.tensor([draw.uniform(-0.5, 0.5) for _ in range(width)])
        self.register_buffer("shift", numbers)
        self.register_buffer("spread", 1.0 + numbers.abs(), persistent=draw.random() < 0.6)
        self.register_buffer("order", torch.tensor(draw.sample(range(width), width)))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.shift) / self.spread)[:, self.order]  # type: ignore[index]


class Moving(nn.Module):
    """A running mean of a user's own, written in training, in place or not."""

    def __init__(self, width: int, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            now = x.detach().mean(0)
            if self.in_place:
                self.mean.mul_(0.9).add_(0.1 * now)  # type: ignore[operator, union-attr]
            else:
                self.mean = 0.9 * self.mean + 0.1 * now  # type: ignore[operator]
        return x - self.mean  # type: ignore[operator]


class Body(nn.Module):
    """Features from a body, logits from a head; a pair where asked for."""

    def __init__(self, body: nn.Module, width: int, classes: int, draw: Draw) -> None:
        super().__init__()
        self.body = body
        self.head = linear(width, classes, draw)
        self.pair = draw.random() < 0.4
        if draw.random() < 0.05:
            self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.body(x)
        logits: Tensor = self.head(features)
        return (logits, features) if self.pair else logits


def linear(inputs: int, outputs: int, draw: Draw) -> nn.Module:
    """A linear layer; sometimes its weight is a transposed view, frozen, or normalised."""
    layer = nn.Linear(inputs, outputs, bias=draw.random() < 0.85)
    way = draw.random()
    if way < 0.10:
        layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    elif way < 0.13:
        layer.weight.requires_grad_(False)
    elif way < 0.165:
        return nn.utils.parametrizations.weight_norm(layer)
    elif way < 0.2:
        return nn.LazyLinear(outputs)
    return layer


def groups_of(channels: int, draw: Draw) -> int:
    found = [n for n in range(1, channels + 1) if channels % n == 0]
    return draw.choice(found[:-1] or found) if draw.random() < 0.95 else channels


def batch_norm(kind: Callable[..., nn.Module], width: int, draw: Draw) -> nn.Module:
    layer = kind(
        width,
        momentum=draw.choice((0.1, 0.1, 0.3, 1.0)),
        affine=draw.random() < 0.8,
        track_running_stats=draw.random() < 0.8,
    )
    return layer.eval() if draw.random() < 0.1 else layer


def norm(width: int, dims: int, draw: Draw) -> nn.Module:
    """A normalisation of ``[N, width, ...]`` with so many axes after the second."""
    batch = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)[dims]
    way = draw.choice(("batch", "batch", "group", "instance", "layer", "local"))
    if way == "batch":
        return batch_norm(batch, width, draw)
    if way == "instance" and dims:
        kind = nn.InstanceNorm1d if dims == 1 else nn.InstanceNorm2d
        return kind(width, affine=draw.random() < 0.5, track_running_stats=draw.random() < 0.2)
    if way == "layer" and not dims:
        if draw.random() < 0.3:
            return nn.RMSNorm(width)
        return nn.LayerNorm(width, elementwise_affine=draw.random() < 0.8)
    if way == "local" and dims:
        return nn.LocalResponseNorm(2)
    return nn.GroupNorm(groups_of(width, draw), width, affine=draw.random() < 0.8)


def mlp(shape: Shape, classes: int, draw: Draw) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(shape)
    if draw.random() < 0.15:
        layers.append(Standardised(width, draw))
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3))):
        if draw.random() < 0.12:
            inner = nn.Sequential(linear(width, width, draw), draw.choice(ACTIVATIONS)())
            layers.append(Residual(inner, draw.random() < 0.5))
            continue
        wide = draw.choice(WIDTHS)
        layers.append(linear(width, wide, draw))
        width = wide
        if draw.random() < 0.4:
            layers.append(norm(width, 0, draw))
        layers.append(draw.choice(ACTIVATIONS)())
        if draw.random() < 0.2:
            layers.append(draw.choice(DRAWING)())
    return Body(nn.Sequential(*layers), width, classes, draw)


def mixing(shape: Shape, classes: int, draw: Draw) -> nn.Module:
    """Rows of a batch see each other, or the network keeps statistics of its own."""
    width, first = draw.choice(WIDTHS), prod(shape)
    way = draw.choice(("mean", "spread", "attention", "moving", "moving in place"))
    own = Moving(width, way.endswith("place")) if way.startswith("moving") else Centred(way)
    layers = [nn.Flatten(), linear(first, width, draw), own, draw.choice(ACTIVATIONS)()]
    return Body(nn.Sequential(*layers), width, classes, draw)


def wide(shape: Shape, classes: int, draw: Draw) -> nn.Module:
    """A first layer that is worth keeping as factors, or a step that is worth a core."""
    width = draw.choice((32, 64, 100, 256))
    layers = [nn.Flatten(), nn.Linear(prod(shape), width, bias=draw.random() < 0.8)]
    layers.append(draw.choice(ACTIVATIONS[:8])())
    return Body(nn.Sequential(*layers), width, classes, draw)


def pool(dims: int, draw: Draw) -> nn.Module:
    kinds: tuple[Any, ...] = (
        (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
        if dims == 1
        else (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    )
    kind = draw.choice(kinds)
    if kind in kinds[2:]:
        return kind(draw.choice((1, 2)))  # type: ignore[no-any-return]
    return kind(2, stride=draw.choice((1, 2)), padding=draw.choice((0, 1)))  # type: ignore[no-any-return]


def convolutions(shape: Shape, classes: int, draw: Draw) -> nn.Module:
    """Convolutions over one or two axes, sometimes depthwise; samples may come flat."""
    dims = len(shape) - 1
    kind: Any = nn.Conv1d if dims == 1 else nn.Conv2d
    layers: list[nn.Module] = []
    channels = shape[0]
    for place in range(draw.choice((1, 1, 2, 2, 3))):
        depthwise = place > 0 and draw.random() < 0.3
        wide = channels * draw.choice((1, 2)) if depthwise else draw.choice((1, 2, 3, 4, 6, 8))
        size = draw.choice((1, 2, 3, 3))
        options: dict[str, Any] = {
            "padding": draw.choice((0, 1, 1)) if size < 3 else 1,
            "stride": draw.choice((1, 1, 2)),
            "bias": draw.random() < 0.6,
            "groups": channels if depthwise else 1,
        }
        if draw.random() < 0.1:
            options["padding_mode"] = draw.choice(("circular", "reflect", "replicate"))
        conv = kind(channels, wide, size, **options)
        same = wide == channels and options["stride"] == 1 and size == 3
        channels = wide
        after: list[nn.Module] = [norm(channels, dims, draw)] if draw.random() < 0.5 else []
        after.append(draw.choice(ACTIVATIONS)())
        block = nn.Sequential(conv, *after)
        layers.append(Residual(block, draw.random() < 0.3) if same else block)
        if draw.random() < 0.25:
            layers.append(pool(dims, draw))
    layers.append(nn.Flatten())
    body = nn.Sequential(*layers)
    if dims == 2 and draw.random() < 0.2:
        body = body.to(memory_format=torch.channels_last)
    with torch.no_grad():
        width = body.eval()(torch.zeros(2, *shape)).shape[1]
    return Body(body.train(), width, classes, draw)


class Recurrent(nn.Module):
    """LSTM, GRU or plain; the last output, the mean, or the last state."""

    def __init__(self, features: int, draw: Draw) -> None:
        super().__init__()
        kind: Any = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
        self.first, hidden = draw.random() < 0.7, draw.choice((1, 3, 5, 8))
        both, layers = draw.random() < 0.3, draw.choice((1, 1, 2))
        self.net = kind(
            features, hidden, layers, bidirectional=both, batch_first=self.first,
            bias=draw.random() < 0.8,
        )  # fmt: skip
        self.way, self.width = draw.choice(("last", "mean", "state")), hidden * (1 + both)
        if self.way == "state":
            self.width = hidden

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.net(x if self.first else x.transpose(0, 1))
        if self.way == "state":
            last: Tensor = state[0] if isinstance(state, tuple) else state
            return last[-1]
        out = out if self.first else out.transpose(0, 1)
        found: Tensor = out[:, -1] if self.way == "last" else out.mean(1)
        return found


class OwnAttention(nn.Module):
    """Scaled dot products by hand, causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(found.transpose(1, 2).reshape(n, t, d))
        return out


class TorchAttention(nn.Module):
    """``nn.MultiheadAttention`` of a sequence with itself."""

    def __init__(self, width: int, heads: int, weights: bool) -> None:
        super().__init__()
        self.net, self.weights = nn.MultiheadAttention(width, heads, batch_first=True), weights

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x, x, x, need_weights=self.weights)[0]
        return out


class Attention(nn.Module):
    """One block of a transformer over a sequence of vectors."""

    def __init__(self, features: int, length: int, draw: Draw) -> None:
        super().__init__()
        heads = draw.choice((1, 2))
        self.width = width = heads * draw.choice((2, 4))
        self.into = nn.Linear(features, width)
        self.places = nn.Parameter(0.1 * torch.randn(1, length, width))
        way = draw.choice(("own", "torch", "layer"))
        if way == "layer":
            drop = 0.0 if draw.random() < 0.6 else 0.1
            self.block: nn.Module = nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout=drop, batch_first=True,
                activation=draw.choice(("relu", "gelu")), norm_first=draw.random() < 0.5,
            )  # fmt: skip
        else:
            last = draw.random() < 0.5
            own = OwnAttention if way == "own" else TorchAttention
            self.block = nn.Sequential(
                Residual(own(width, heads, last), False), nn.LayerNorm(width)
            )
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if draw.random() < 0.3 else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x) + self.places
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        out: Tensor = self.block(x)
        return out.mean(1) if self.token is None else out[:, 0]


class Bag(nn.Module):
    """``nn.EmbeddingBag`` over token numbers."""

    def __init__(self, words: int, width: int, draw: Draw) -> None:
        super().__init__()
        padding = 0 if draw.random() < 0.3 else None
        mode = draw.choice(("mean", "sum"))
        self.net = nn.EmbeddingBag(words, width, mode=mode, padding_idx=padding)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Words(nn.Module):
    """An embedding whose vectors go through ``inner``; with ``tied`` it is used twice."""

    def __init__(self, words: int, width: int, inner: nn.Module, tied: bool, draw: Draw) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0 if draw.random() < 0.4 else None)
        self.inner, self.tied = inner, tied

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(self.embed(x))
        return found @ self.embed.weight.t() if self.tied else found


def sequences(shape: Shape, classes: int, draw: Draw) -> nn.Module:
    length, features = shape
    if draw.random() < 0.5:
        inner: Any = Recurrent(features, draw)
    else:
        inner = Attention(features, length, draw)
    return Body(inner, inner.width, classes, draw)


def texts(shape: Shape, classes: int, draw: Draw, words: int) -> nn.Module:
    width, way = draw.choice((1, 2, 4, 6)), draw.random()
    if way < 0.25:
        return Body(Bag(words, width, draw), width, classes, draw)
    if way < 0.5:
        tied = draw.random() < 0.3
        mean = Function(lambda x: x.mean(1))
        return Body(Words(words, width, mean, tied, draw), words if tied else width, classes, draw)
    inner: Any = Recurrent(width, draw) if way < 0.75 else Attention(width, shape[0], draw)
    return Body(Words(words, width, inner, False, draw), inner.width, classes, draw)


FAMILIES: dict[str, Callable[[Shape, int, Draw], nn.Module]] = {
    "linear": lambda shape, classes, draw: nn.Sequential(
        nn.Flatten(), linear(prod(shape), classes, draw)
    ),
    "mlp": mlp,
    "mixing": mixing,
    "wide": wide,
    "convolutions": convolutions,
    "sequences": sequences,
}


@model("fuzz")
def fuzz(
    shape: Shape, classes: int, *, family: str = "mlp", draw: int = 0, vocabulary: int = 0
) -> nn.Module:
    """The network with that number of its family; a number whose layers do not fit the samples
    (a kernel larger than they are) stands for the next one that does."""
    for number in range(draw, draw + 50):
        try:
            made = _made(family, shape, classes, Draw(number), vocabulary)
            _tried(made, shape, vocabulary)
        except (RuntimeError, ValueError):
            continue
        return made
    raise ValueError(f"no network of family {family!r} fits samples of shape {shape}")


def _made(family: str, shape: Shape, classes: int, draw: Draw, words: int) -> nn.Module:
    if family == "authored":
        return authored(shape, classes, draw, words)
    if family == "texts":
        return texts(shape, classes, draw, words)
    return FAMILIES[family](shape, classes, draw)


@torch.no_grad()
def _tried(net: nn.Module, shape: Shape, words: int) -> None:
    """Two samples go through it in training, as torch has it; nothing of it is kept."""
    before = {k: v.clone() for k, v in net.named_buffers()}
    x = torch.zeros(2, *shape, dtype=torch.long if words else torch.float32)
    net.train()(x)
    for name, value in net.named_buffers():
        value.copy_(before[name])
