"""From bytes to samples: size, channels, scale; the same options for every set of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.dataset import Dataset

Scale = Literal["unit", "signed", "standard"]
Bytes = NDArray[np.uint8]


class RawSplit(NamedTuple):
    """Images [N, H, W] or [N, H, W, 3] as bytes, their classes, and their clients."""

    x: Bytes
    y: NDArray[Any]
    group: NDArray[Any] | None = None

    def take(self, rows: NDArray[np.int64]) -> RawSplit:
        group = None if self.group is None else self.group[rows]
        return RawSplit(self.x[rows], self.y[rows], group)


class Look(NamedTuple):
    """How images are shown.

    ``size``: resize to so many pixels a side (bilinear, anti-aliased). ``channels``: 1 is the
    luminance 0.299 R + 0.587 G + 0.114 B, 3 repeats grey. ``scale``: ``unit`` is [0, 1],
    ``signed`` [-1, 1], ``standard`` subtracts the mean and divides by the deviation of the
    training set as published. ``flat`` gives vectors. ``limit``: at most so many rows of either
    part, drawn with seed 0.
    """

    size: int | None = None
    channels: int | None = None
    scale: Scale = "unit"
    flat: bool = False
    limit: int | None = None


def dataset(
    name: str,
    train: RawSplit,
    test: RawSplit,
    classes: int,
    look: Look,
    mean: Sequence[float] = (0.5,),
    deviation: Sequence[float] = (0.5,),
) -> Dataset:
    """The data set that these parts are under ``look``."""
    _check(name, look)
    pools, groups = [], []
    for part in (train, test):
        part = limited(part, look.limit)
        pools.append(Pool(_seen(part.x, look, mean, deviation), torch.from_numpy(_long(part.y))))
        groups.append(None if part.group is None else torch.from_numpy(_long(part.group)))
    shape = tuple(pools[0].x.shape[1:])
    return Dataset(name, pools[0], pools[1], classes, shape, groups[0], groups[1])


def limited(part: RawSplit, limit: int | None) -> RawSplit:
    if limit is None or limit >= len(part.y):
        return part
    rows = np.random.default_rng(0).permutation(len(part.y))[:limit]
    return part.take(np.sort(rows))


def split(part: RawSplit, share: float = 0.2, seed: int = 0) -> tuple[RawSplit, RawSplit]:
    """A fixed stratified split of a set that has none: every class gives ``share`` to the test."""
    rng = np.random.default_rng(seed)
    test = np.zeros(len(part.y), dtype=bool)
    for label in np.unique(part.y):
        rows = rng.permutation(np.flatnonzero(part.y == label))
        test[rows[: round(share * len(rows))]] = True
    return part.take(np.flatnonzero(~test)), part.take(np.flatnonzero(test))


def joined(parts: Sequence[RawSplit]) -> RawSplit:
    """Several sets in one; the group of a row is the number of its set."""
    group = np.repeat(np.arange(len(parts)), [len(p.y) for p in parts])
    return RawSplit(
        np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]), group
    )


def _seen(x: Bytes, look: Look, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Float images [N, C, H, W], block by block so that no more than the result is held."""
    blocks = [_block(x[i : i + 4096], look, mean, deviation) for i in range(0, len(x), 4096)]
    return torch.cat(blocks) if blocks else _block(x, look, mean, deviation)


def _block(x: Bytes, look: Look, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    images = torch.from_numpy(np.array(x, order="C"))
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
    out = images.to(torch.float32) / 255.0
    if look.size is not None and tuple(out.shape[2:]) != (look.size, look.size) and len(out):
        side = (look.size, look.size)
        out = interpolate(out, side, mode="bilinear", antialias=True).clamp(0.0, 1.0)
    if look.scale == "signed":
        out = out * 2.0 - 1.0
    elif look.scale == "standard":
        centre, spread = torch.tensor(mean), torch.tensor(deviation)
        out = (out - centre.view(1, -1, 1, 1)) / spread.view(1, -1, 1, 1)
    out = _channels(out, look.channels).contiguous()
    return out.flatten(1) if look.flat else out


def _channels(x: Tensor, wanted: int | None) -> Tensor:
    if wanted is None or wanted == x.shape[1]:
        return x
    if wanted == 3:
        return x.expand(-1, 3, -1, -1)
    return (x * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _long(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(values, dtype=np.int64)


def _check(name: str, look: Look) -> None:
    if look.scale not in ("unit", "signed", "standard"):
        raise UserError(f"scale of data set {name!r} is {look.scale!r}; it must be unit, signed or "
                        f"standard.")  # fmt: skip
    if look.channels not in (None, 1, 3):
        raise UserError(f"channels of data set {name!r} is {look.channels!r}; it must be 1 or 3.")
    for key, value in (("size", look.size), ("limit", look.limit)):
        if value is not None and (isinstance(value, bool) or value < 1 or value % 1):
            raise UserError(f"{key} of data set {name!r} is {value!r}; it must be a whole number "
                            f"above 0.")  # fmt: skip
