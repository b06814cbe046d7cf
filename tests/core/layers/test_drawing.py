"""Layers that draw: torch's own, with numbers of a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as attention

from fuzz.by_hand import Answering
from shoal.core.layers.drawing import LayerDraws, step_keys
from shoal.core.rng import Purpose, bits, fold, seeded

DOUBLE = torch.float64
KEY = step_keys(3, 1, [4], 0, [2])[0, 0]


def signed(word: int) -> int:
    return (word + 2**63) % 2**64 - 2**63


def turned(z: int, factor: int) -> int:
    """Python's shift keeps the sign, as torch's does."""
    return signed((z ^ (z >> 32)) * factor)


def test_words_by_hand() -> None:
    key = fold(3, Purpose.LAYER, 1, 4, 0, 2)
    columns = [int(word) for word in bits(np.zeros(1, np.uint64), 3)[0]]
    draws = LayerDraws(KEY)
    for call in range(2):
        expected = []
        for row in range(2):
            begin = signed(key + call * 0xD1342543DE82EF95 + row * 0x9E3779B97F4A7C15)
            one = turned(begin, 0xBF58476D1CE4E5B9)
            expected += [turned(signed(one + c), 0x94D049BB133111EB) for c in columns]
        assert draws.words(2, 3).flatten().tolist() == expected


def test_rows_and_columns_know_nothing_of_each_other() -> None:
    """The spread of products of two rows, and of two columns, is that of chance."""
    like, apart = torch.empty(0, dtype=DOUBLE), []
    for number in range(8):
        signs = 2 * LayerDraws(KEY + number).kept((256, 256), 0.5, like) - 1
        for table in (signs, signs.t()):
            apart.append((table @ table.t())[~torch.eye(256, dtype=torch.bool)])
    spread = float(torch.cat(apart).var()) / 256
    assert abs(spread - 1) < 5 * math.sqrt(2 / (8 * 2 * 256 * 255 / 2))


def test_shares_and_moments() -> None:
    like, draws = torch.empty(0, dtype=DOUBLE), LayerDraws(KEY)
    for share in (0.001, 0.1, 0.5, 0.9):
        kept = draws.kept((400, 501), share, like)
        assert abs(float(kept.mean()) - share) < 4 * math.sqrt(share * (1 - share) / kept.numel())
        neighbours = (kept[:, 1:] * kept[:, :-1]).mean()
        assert abs(float(neighbours) - share**2) < 0.01
    uniform, normal = draws.uniform((400, 500), DOUBLE), draws.normal((400, 500), DOUBLE)
    assert abs(float(uniform.mean()) - 0.5) < 0.003 and abs(float(uniform.var()) - 1 / 12) < 0.001
    assert abs(float(normal.mean())) < 0.01 and abs(float(normal.var()) - 1) < 0.02
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1


def test_rows_that_follow_change_nothing() -> None:
    like = torch.empty(0)
    for shape in ((), (7,), (3, 2)):
        few, many = (LayerDraws(KEY, n).kept((n, *shape), 0.5, like) for n in (5, 9))
        assert torch.equal(few, many[:5])
    few, many = (LayerDraws(KEY, n).kept((7, n, 3), 0.5, like) for n in (5, 9))  # time first
    assert torch.equal(few, many[:, :5])


class Attends(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        few = heads[:, :1] if self.options.get("enable_gqa") else heads
        p = 0.3 if self.training else 0.0
        return attention(heads, few, few, dropout_p=p, **self.options)  # type: ignore[arg-type]


class Alone(nn.Module):
    """Of what a layer returns, the first."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(*[x] * self.times)[0]
        return found


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 4, 3, dropout=0.4, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]), batch_first=True)
        found: Tensor = self.layer(packed)[0].data
        return found


FLAG = torch.ones(5, 5, dtype=torch.bool).tril(1)
DROPPED: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.3),
    "dropout in place": lambda: nn.Sequential(nn.Identity(), nn.Dropout(0.3, inplace=True)),
    "dropout of channels": lambda: nn.Dropout1d(0.3),
    "dropout of maps": lambda: nn.Sequential(nn.Unflatten(2, (2, 4)), nn.Dropout2d(0.3)),
    "dropout of volumes": lambda: nn.Sequential(nn.Unflatten(2, (2, 2, 2)), nn.Dropout3d(0.3)),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "alpha dropout of channels": lambda: nn.FeatureAlphaDropout(0.3),
    "everything dropped": lambda: nn.Dropout(1.0),
    "lstm": lambda: Alone(nn.LSTM(8, 4, 3, dropout=0.4, batch_first=True)),
    "gru both ways": lambda: Alone(nn.GRU(8, 4, 2, dropout=0.4, bidirectional=True)),
    "plain recurrent": lambda: Alone(nn.RNN(8, 4, 2, dropout=0.4)),
    "lstm, projected": lambda: Alone(nn.LSTM(8, 6, 2, dropout=0.4, proj_size=3)),
    "lstm, packed": Packed,
    "attention": Attends,
    "attention, causal": partial(Attends, is_causal=True),
    "attention, masked": partial(Attends, attn_mask=FLAG),
    "attention, biased": partial(Attends, attn_mask=FLAG.to(DOUBLE)),
    "attention, scaled": partial(Attends, scale=0.7),
    "attention, grouped": partial(Attends, enable_gqa=True),
    "attention with weights": lambda: Alone(nn.MultiheadAttention(8, 2, dropout=0.3), 3),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 8, dropout=0.2, batch_first=True),
}


@pytest.mark.parametrize("kind", DROPPED)
def test_as_torch_does_it(kind: str) -> None:
    """With the same numbers, answered where torch's own code asks for them; gradients too."""
    with seeded(0):
        net = DROPPED[kind]().to(DOUBLE)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    found = []
    for mode in (LayerDraws(KEY, 3), Answering(KEY, 3)):
        given = x.clone().requires_grad_()
        with mode:
            said = net(given * 1.0)
        (slope,) = torch.autograd.grad((said * said).sum(), given)
        found.append((said, slope))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(*found, strict=True))
    with LayerDraws(KEY) as draws:
        quiet = net.eval()(x)
    assert draws.calls == 0 and torch.equal(quiet, net(x))


def random_slopes(x: Tensor) -> Tensor:
    return functional.rrelu(x, 0.1, 0.4, training=True)


NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(x.shape), 0.5, 1 / 12),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(*x.shape), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "randint": (lambda x: torch.randint(5, x.shape).float(), 2.0, 2.0),
    "randint between": (lambda x: torch.randint(3, 8, x.shape).float(), 5.0, 2.0),
    "randint by name": (
        lambda x: torch.randint(high=5, size=x.shape, generator=None).float(),
        2.0,
        2.0,
    ),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.25)), 0.25, 0.1875),
    "bernoulli of a number": (lambda x: torch.bernoulli(x, 0.25), 0.25, 0.1875),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.25), 0.25, 0.1875),
    "bernoulli_ of shares": (lambda x: x * 0 + x.clone().bernoulli_(x * 0 + 0.25), 0.25, 0.1875),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(2, 4), 3.0, 1 / 3),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), 2.0, 9.0),
    "normal": (lambda x: torch.normal(x * 0 + 2, 3.0), 2.0, 9.0),
    "normal of a size": (lambda x: torch.normal(2.0, 3.0, x.shape), 2.0, 9.0),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "gumbel": (lambda x: functional.gumbel_softmax(x * 0, hard=True), 1 / 200, 199 / 200**2),
    "rrelu": (lambda x: random_slopes(x.abs() * 0 - 1), -0.25, 0.3**2 / 12),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_kind(kind: str) -> None:
    draw, mean, variance = NUMBERS[kind]
    x = torch.ones(300, 200)
    one, again, other = (drawn(draw, x, KEY + k) for k in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert float(one.double().mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / 60_000))
    assert float(one.double().var()) == pytest.approx(variance, rel=0.03)


def drawn(draw: Callable[[Tensor], Tensor], x: Tensor, key: Tensor) -> Tensor:
    with LayerDraws(key) as draws:
        found = draw(x)
    assert draws.calls
    return found


def test_an_order_is_one() -> None:
    with LayerDraws(KEY):
        found = torch.randperm(50)
    assert found.tolist() != list(range(50)) and sorted(found.tolist()) == list(range(50))


def test_an_order_depends_on_how_many_there_are() -> None:
    with LayerDraws(KEY, 50) as draws:
        torch.randperm(50)
    assert not draws.by_row


@pytest.mark.parametrize("kind", ["dropout", "alpha dropout of channels", "transformer"])
def test_clients_side_by_side(kind: str) -> None:
    """A stack's numbers are those of its clients."""
    with seeded(0):
        net = DROPPED[kind]().to(DOUBLE)
    keys, x = step_keys(0, 0, [1, 5, 2], 0, [0])[0], torch.randn(3, 4, 5, 8, dtype=DOUBLE)

    def one(key: Tensor, rows: Tensor) -> Tensor:
        with LayerDraws(key):
            found: Tensor = net(rows)
        return found

    each = torch.stack([one(key, rows) for key, rows in zip(keys, x, strict=True)])
    assert torch.allclose(vmap(one)(keys, x), each, rtol=0, atol=1e-12)
