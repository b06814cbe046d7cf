"""Layers that draw (dropout and the like), answered with numbers that follow from a key.

While a network computes in training, every function of torch's that would draw from the global
generator is answered here instead. A number follows from the key of the client's step, from which
draw of the pass it is, and from its place in the tensor, row by row: so it is the same on every
engine, for one client or a stack of them, however many rows of padding follow.

Numbers are made of 64-bit words, ``turn(turn(key + call + row) + column)``, where ``column`` is
SplitMix64's word of that number and ``turn(z) = (z ^ (z >> 32)) * m``; all of it in torch's own
operators on whole numbers, which are exact on every device, under ``vmap`` and in a captured step.
It is written for few passes over memory: most of it is done once per row, or never again, and what
is kept of a tensor is decided by a quarter of a word per entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shoal.core.rng import Keys, Purpose, bits, keys

Shape = Sequence[int]
_CALL, _ROW = 0xD1342543DE82EF95, 0x9E3779B97F4A7C15  # between two draws of a pass, two rows


def _signed(word: int) -> int:
    """The same 64 bits as torch writes them."""
    return (word + 2**63) % 2**64 - 2**63


COARSE = 2**-10  # a probability that is nearer to 0 or 1 is decided by half a word
_M1, _M2, _M3 = map(_signed, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93))


def step_keys(
    seed: int, round: int, clients: Sequence[int], epoch: int, steps: Sequence[int]
) -> Tensor:
    """``[len(steps), len(clients)]`` keys: what the layers of a client's step draw with.

    >>> both = step_keys(0, 1, [5, 6], 0, [0, 1, 2])
    >>> bool((both[2, 1:] == step_keys(0, 1, [6], 0, [2])[0]).all())
    True
    """
    numbers = np.asarray(steps, dtype=np.int64)[:, None]
    found = keys(seed, Purpose.LAYER, round, clients, epoch, numbers)
    return torch.from_numpy(found.astype(np.int64))


@lru_cache(64)
def _begins(rows: int, call: int) -> Tensor:
    """``[rows, 1]`` what a draw adds to the key in each row."""
    place = np.arange(rows, dtype=np.uint64) * np.uint64(_ROW)
    return _plain((place + np.uint64(call * _CALL % 2**64))[:, None])


@lru_cache(64)
def _columns(width: int) -> Tensor:
    """``[width]`` random words."""
    return _plain(bits(np.zeros(1, dtype=np.uint64), width)[0])


def _plain(words: Keys) -> Tensor:
    """A tensor that nobody writes to, whatever transforms and modes are on while it is made: it is
    used in others."""
    with (
        torch.inference_mode(False),
        torch._C._DisableFuncTorch(),
        torch._C._DisableTorchDispatch(),
    ):
        return torch.from_numpy(words.astype(np.int64))


def _turned(z: Tensor, factor: int) -> Tensor:
    return (z ^ torch.bitwise_right_shift(z, 32)) * factor


class LayerDraws(TorchFunctionMode):
    """One pass of a network over so many ``rows`` under a key (0-d, whole numbers).

    ``calls`` counts its draws. The rows of a drawn tensor are along the first axis that is as long
    as there are rows (a sequence may have time first), else along the first; ``by_row`` says
    whether it was the first and as long every time, as of most networks: then what a row is given
    does not depend on how long a batch is.
    """

    def __init__(self, key: Tensor, rows: int = 1, first: int = 0) -> None:
        super().__init__()
        self._key, self._rows = key, rows
        self.calls, self.by_row = first, True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _OPENED and isinstance(func, FunctionType):
            with self:  # what it calls comes here, too
                return _opened(func)(*args, **kwargs)
        answer = None if isinstance(func, FunctionType) else _ANSWERS.get(name)
        if answer is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
        return answer(self, func, *args, **kwargs)

    # ---- numbers ----
    def words(self, rows: int, width: int) -> Tensor:
        """``[rows, width]`` random words of the pass's next draw; all four quarters are good, of
        each the high bits best."""
        begin = self._key + _begins(rows, self.calls).to(self._key.device)
        self.calls += 1
        return _turned(_turned(begin, _M1) + _columns(width).to(begin.device), _M2)

    def kept(self, shape: Shape, share: float, like: Tensor, value: float = 1.0) -> Tensor:
        """``value`` with that probability, else 0, of the type of ``like``; to a part in 2^16, or
        2^32 where the probability is nearly 0 or 1."""
        axis, rows, width = self._placed(shape)
        bits, kind = (16, torch.int16) if COARSE <= share <= 1 - COARSE else (32, torch.int32)
        each = 64 // bits
        z = self.words(rows, -(-width // each)).view(kind)
        z = z[..., :width] if width % each else z
        level = max(1, min(round(share * 2**bits), 2**bits - 1)) - 2 ** (bits - 1)
        # 1 below the level, else 0: a comparison's truth values take torch three times as long
        found = (level - z.clamp(level - 1, level)).to(like.dtype)
        return _shaped(found if value == 1.0 else found * value, shape, axis)

    def uniform(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Numbers in [0, 1), as many bits as the type has."""
        size = {torch.float64: 53, torch.float32: 24, torch.float16: 11}.get(dtype, 8)
        axis, rows, width = self._placed(shape)
        z = torch.bitwise_right_shift(_turned(self.words(rows, width), _M3), 64 - size)
        z = z.bitwise_and(2**size - 1)  # the sign came with the shift
        return _shaped(z.to(dtype) * 2.0**-size, shape, axis)

    def _placed(self, shape: Shape) -> tuple[int, int, int]:
        """The axis of rows, how many they are, and numbers in each."""
        self.by_row &= len(shape) > 0 and shape[0] == self._rows
        axis = list(shape).index(self._rows) if self._rows in shape else 0
        rows = shape[axis] if len(shape) else 1
        return axis, rows, math.prod(shape) // max(rows, 1)

    def normal(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers (Box-Muller)."""
        radius, angle = self._open(shape), self.uniform(shape, torch.float64)
        found = (-2.0 * radius.log()).sqrt() * (2.0 * math.pi * angle).cos()
        return found.to(dtype)

    def _open(self, shape: Shape) -> Tensor:
        """Numbers in (0, 1], whose logarithm exists."""
        return 1.0 - self.uniform(shape, torch.float64)

    # ---- dropout ----
    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Dropout as torch does it in training."""
        if not 0.0 < p < 1.0 or not x.numel():
            return x * (1.0 - p)
        return x * self.kept(x.shape, 1.0 - p, x, 1.0 / (1.0 - p))


def _shaped(numbers: Tensor, shape: Shape, axis: int) -> Tensor:
    """``[rows, width]`` numbers in a shape with the rows along an axis."""
    rest = [size for k, size in enumerate(shape) if k != axis]
    if not axis:
        return numbers.reshape(tuple(shape))
    return numbers.reshape(shape[axis], *rest).movedim(0, axis)


def _channels(x: Tensor) -> tuple[int, ...]:
    """One number a channel."""
    return (*x.shape[:2], *(1,) * (x.dim() - 2))


def _dropout(features: bool, alpha: bool, over: bool) -> Callable[..., Tensor]:
    """An answer to one of torch's dropouts: of ``features`` (whole channels), with mean and
    variance kept (``alpha``), in place of its input (``over``)."""

    def answer(
        draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, p: float, train: bool
    ) -> Tensor:
        if not train or not 0.0 < p < 1.0 or not input.numel():
            return func(input, p, train)
        shape, value = _channels(input) if features else input.shape, 1.0 / (1.0 - p)
        kept = draws.kept(shape, 1.0 - p, input, 1.0 if alpha else value)
        if alpha:
            low = 1.7580993408473766  # what SELU tends to
            scale = 1.0 / math.sqrt((low * low * p + 1.0) * (1.0 - p))
            shift = (kept - 1.0) * (low * scale) + low * scale * p
            kept = kept * scale
        if over:
            return input.mul_(kept).add_(shift) if alpha else input.mul_(kept)
        return input * kept + shift if alpha else input * kept

    return answer


# ---- attention, recurrent layers -----------------------------------------------------------------


def _attention(
    draws: LayerDraws,
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``dropout(softmax(q k' scale + mask)) v``, as torch's own where it drops."""
    if not dropout_p:
        more = {"scale": scale, "enable_gqa": enable_gqa}
        return func(query, key, value, attn_mask, dropout_p, is_causal, **more)
    if enable_gqa:
        times = query.size(-3) // key.size(-3)
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (scale or query.size(-1) ** -0.5)
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
        attn_mask = ones.tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        # a row that may look at nothing gets zeros, as torch's
        shut = attn_mask.logical_not()
        weights = scores.masked_fill(shut, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(shut, 0.0)
    else:
        weights = (scores if attn_mask is None else scores + attn_mask).softmax(-1)
    return draws.dropped(weights, dropout_p) @ value


def _recurrent(
    draws: LayerDraws, func: Callable[..., Any], input: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """Layer by layer, with dropout between two layers.

    ``rest`` is (batch sizes of a packed sequence,) states, weights, and six or seven settings.
    """
    packed = isinstance(rest[0], Tensor) and isinstance(rest[2], list | tuple)
    sizes, (states, weights, bias, layers, p, train, both) = (
        ((rest[0],), rest[1:8]) if packed else ((), rest[:7])
    )
    if not (train and p and layers > 1):
        return tuple(func(input, *rest))
    x = input
    several = isinstance(states, list | tuple)
    held = list(states) if several else [states]
    each, wide = len(weights) // layers, 1 + bool(both)
    ends: list[list[Tensor]] = []
    for k in range(layers):
        own = [t[k * wide : (k + 1) * wide] for t in held]
        options = (bias, 1, 0.0, train, both, *rest[8 if packed else 7 :])
        begin = tuple(own) if several else own[0]
        x, *end = func(x, *sizes, begin, weights[k * each : (k + 1) * each], *options)
        ends.append(end)
        if k + 1 < layers:
            x = draws.dropped(x, p)
    finals = [torch.cat(column) for column in zip(*ends, strict=True)]
    return (x, *finals)


# ---- numbers as such -----------------------------------------------------------------------------


def _numbers(way: str, like: bool) -> Callable[..., Tensor]:
    """An answer to ``torch.rand``, ``randn`` and those of the form of another tensor."""

    def answer(draws: LayerDraws, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        empty = (torch.empty_like if like else torch.empty)(*args, **kwargs)
        found: Tensor = getattr(draws, way)(empty.shape, empty.dtype)
        return found.requires_grad_() if kwargs.get("requires_grad") else found

    return answer


def _integers(
    draws: LayerDraws, func: Callable[..., Tensor], low: int = 0, high: Any = None, *size: Any,
    **kwargs: Any,
) -> Tensor:  # fmt: skip
    """``torch.randint``: (low, high, size) or (high, size)."""
    if high is None:
        low, high = 0, low
    if "size" not in kwargs and not size:
        low, high, size = 0, low, (high,)
    empty = torch.empty(*size, **{"dtype": torch.int64, **kwargs})
    found = draws.uniform(empty.shape, torch.float64) * float(high - low)
    return found.to(empty.dtype) + low


def _permutation(draws: LayerDraws, func: Callable[..., Tensor], n: int, **kwargs: Any) -> Tensor:
    """``torch.randperm``."""
    order: Tensor = draws.uniform((n,), torch.float64).argsort()
    draws.by_row = False  # each place depends on how many there are
    return order.to(kwargs.get("dtype") or torch.int64)


def _coins(
    draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, p: float | None = None
) -> Tensor:
    """``torch.bernoulli``: the input says with what probability, or a number does."""
    drawn = draws.uniform(input.shape, torch.float64)
    return (drawn < (input if p is None else p)).to(input.dtype)


def _coins_over(
    draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, p: float | Tensor = 0.5
) -> Tensor:
    if isinstance(p, Tensor):
        drawn = draws.uniform(input.shape, torch.float64)
        return input.copy_((drawn < p).to(input.dtype))
    return input.copy_(draws.kept(input.shape, float(p), input))


def _spread_over(
    draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, a: float = 0.0, b: float = 1.0,
    **named: float,
) -> Tensor:  # fmt: skip
    """``uniform_(from, to)``."""
    a, b = named.get("from", a), named.get("to", b)
    return input.copy_(a + (b - a) * draws.uniform(input.shape, input.dtype))


def _bell_over(
    draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, mean: float = 0.0,
    std: float = 1.0,
) -> Tensor:  # fmt: skip
    return input.copy_(mean + std * draws.normal(input.shape, input.dtype))


def _bell(
    draws: LayerDraws, func: Callable[..., Tensor], mean: Any, std: Any = 1.0, size: Any = None,
    **kwargs: Any,
) -> Tensor:  # fmt: skip
    """``torch.normal``."""
    form: Tensor = mean + 0.0 * std if size is None else torch.empty(size, **kwargs)
    found: Tensor = mean + std * draws.normal(form.shape, form.dtype)
    return found


def _waits_over(
    draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, lambd: float = 1.0
) -> Tensor:
    return input.copy_((-draws._open(input.shape).log() / lambd).to(input.dtype))


def _slopes(over: bool) -> Callable[..., Tensor]:
    """An answer to ``torch.rrelu``: a slope is drawn for each entry that is not above 0."""

    def answer(
        draws: LayerDraws, func: Callable[..., Tensor], input: Tensor, lower: float, upper: float,
        training: bool = False,
    ) -> Tensor:  # fmt: skip
        if not training:
            return func(input, lower, upper, training)
        drawn = lower + (upper - lower) * draws.uniform(input.shape, input.dtype)
        slope = torch.where(input > 0, 1.0, drawn).to(input.dtype)
        return input.mul_(slope) if over else input * slope

    return answer


_ANSWERS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout(False, False, False),
    "dropout_": _dropout(False, False, True),
    "feature_dropout": _dropout(True, False, False),
    "feature_dropout_": _dropout(True, False, True),
    "alpha_dropout": _dropout(False, True, False),
    "alpha_dropout_": _dropout(False, True, True),
    "feature_alpha_dropout": _dropout(True, True, False),
    "feature_alpha_dropout_": _dropout(True, True, True),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    "rand": _numbers("uniform", False),
    "rand_like": _numbers("uniform", True),
    "randn": _numbers("normal", False),
    "randn_like": _numbers("normal", True),
    "randint": _integers,
    "randperm": _permutation,
    "bernoulli": _coins,
    "bernoulli_": _coins_over,
    "uniform_": _spread_over,
    "normal_": _bell_over,
    "normal": _bell,
    "exponential_": _waits_over,
    "rrelu": _slopes(False),
    "rrelu_": _slopes(True),
}

# Functions of torch.nn.functional that are written in Python and draw inside. A mode of torch is
# shown the whole of them, or what they call if they do not ask whether there is a mode.
_OPENED = frozenset(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    + ("multi_head_attention_forward", "gumbel_softmax", "rrelu")
)


@lru_cache(32)
def _opened(func: FunctionType) -> Callable[..., Any]:
    """The function without its question for a mode."""
    asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**func.__globals__, **dict.fromkeys(asks, lambda *_: False)}
    found = FunctionType(func.__code__, known, func.__name__, func.__defaults__, func.__closure__)
    found.__kwdefaults__ = func.__kwdefaults__
    return found
