"""Domains: the same task under other inputs, all of them in one pool of rows.

A domain is a transform of the run's data set (every row once, so a member's rows are the same
samples seen differently) or another data set of the same shape, classes and words, by its name; it
is loaded with the options of the run's data set that it has too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

import numpy as np
import torch
from torch import Tensor

from shoal.core import rng
from shoal.core.errors import UserError, suggestion
from shoal.core.types import TARGET_WORDS, Pool
from shoal.data.sources import Dataset, load_like, names


@dataclass(frozen=True)
class Range:
    """Smallest and largest value of the training inputs; what a transform may know of the data."""

    low: float
    high: float
    seed: int
    part: int  # 0: training rows, 1: test rows


Transform = Callable[[Tensor, Range], Tensor]


def _images(x: Tensor, name: str) -> Tensor:
    """A view [..., side, side] of images or of flat square images."""
    side = isqrt(x.shape[-1])
    if x.dim() == 2 and side * side == x.shape[-1]:
        return x.reshape(-1, side, side)
    if x.dim() >= 3 and x.shape[-1] == x.shape[-2]:
        return x
    raise UserError(
        f"domain {name!r} turns square images, but a sample has shape {tuple(x.shape[1:])}; use "
        f"inverted, noisy, dim or permuted."
    )


def _rotated(x: Tensor, _: Range) -> Tensor:
    return torch.rot90(_images(x, "rotated"), 1, (-2, -1)).reshape(x.shape)


def _upside_down(x: Tensor, _: Range) -> Tensor:
    return torch.rot90(_images(x, "upside_down"), 2, (-2, -1)).reshape(x.shape)


def _mirrored(x: Tensor, _: Range) -> Tensor:
    return _images(x, "mirrored").flip(-1).reshape(x.shape)


def _noisy(x: Tensor, about: Range) -> Tensor:
    """Plus normal noise of a quarter of the range, keyed by row, clamped to the range."""
    flat = x.reshape(len(x), -1)
    out = torch.empty_like(flat)
    for begin in range(0, len(flat), 1024):
        rows = np.arange(begin, min(begin + 1024, len(flat)))
        key = rng.keys(about.seed, rng.Purpose.DATA, about.part, rows)
        noise = torch.from_numpy(rng.normal(key, flat.shape[1])).to(x)
        out[begin : begin + 1024] = flat[begin : begin + 1024] + noise * (
            0.25 * (about.high - about.low)
        )
    return out.clamp(about.low, about.high).reshape(x.shape)


def _permuted(x: Tensor, about: Range) -> Tensor:
    """One seeded permutation of the features, the same for every row."""
    flat = x.reshape(len(x), -1)
    key = rng.keys(about.seed, rng.Purpose.DATA, 2)
    order = rng.permutations(key, np.array([flat.shape[1]]))[0]
    return flat[:, torch.from_numpy(order).to(x.device)].reshape(x.shape)


TRANSFORMS: dict[str, Transform] = {
    "plain": lambda x, _: x,
    "inverted": lambda x, about: (about.low + about.high) - x,
    "rotated": _rotated,  # by 90 degrees, counterclockwise
    "upside_down": _upside_down,
    "mirrored": _mirrored,  # left and right
    "noisy": _noisy,
    "dim": lambda x, about: about.low + 0.5 * (x - about.low),
    "permuted": _permuted,
}
MOVING = ("rotated", "upside_down", "mirrored", "permuted")


@dataclass(frozen=True)
class DomainRows:
    """A domain's place in the pools: rows from ``train`` and ``test`` on, that many of each."""

    name: str
    train: int
    train_rows: int
    test: int
    test_rows: int
    data: Dataset  # whose labels (and natural clients) these rows have

    @cached_property
    def _by_client(self) -> tuple[Tensor, list[int]] | None:
        """Test rows sorted by natural client, and where each client's begin; found once a run."""
        whose, mine = self.data.group, self.data.test_group
        if whose is None or mine is None:
            return None
        numbers = torch.unique(whose)  # as the partition numbers natural clients
        owned, order = torch.sort(mine, stable=True)
        begins = torch.searchsorted(owned, numbers)
        ends = torch.searchsorted(owned, numbers, right=True)
        return order + self.test, torch.stack([begins, ends], 1).flatten().tolist()

    def test_rows_of(self, client: int) -> Tensor | None:
        """The rows of the test pool that are the natural client's; None where nobody knows."""
        found = self._by_client
        if found is None:
            return None
        rows, edges = found
        return rows[edges[2 * client] : edges[2 * client + 1]]


def lay_out(
    dataset: Dataset, wanted: Sequence[str], seed: int
) -> tuple[Pool, Pool, list[DomainRows]]:
    """Training pool, test pool and blocks of the different domains, in order of appearance.

    With no domain but ``plain`` the pools are the data set's own; nothing is copied.
    """
    unique = list(dict.fromkeys(wanted))
    if unique == ["plain"]:
        block = DomainRows("plain", 0, len(dataset.train.y), 0, len(dataset.test.y), dataset)
        return dataset.train, dataset.test, [block]
    low, high = float(dataset.train.x.min()), float(dataset.train.x.max())
    pools: list[tuple[Pool, Pool]] = []
    blocks: list[DomainRows] = []
    train = test = 0
    for name in unique:
        data, seen = _seen(dataset, name, low, high, seed)
        pools.append(seen)
        blocks.append(DomainRows(name, train, len(data.train.y), test, len(data.test.y), data))
        train, test = train + len(data.train.y), test + len(data.test.y)
    both = [
        Pool(torch.cat([p[i].x for p in pools]), torch.cat([p[i].y for p in pools])) for i in (0, 1)
    ]
    return both[0], both[1], blocks


def _seen(
    dataset: Dataset, name: str, low: float, high: float, seed: int
) -> tuple[Dataset, tuple[Pool, Pool]]:
    """The data set behind a domain, and its pools as that domain shows them."""
    if name not in TRANSFORMS:
        data = _other(dataset, name)
        return data, (data.train, data.test)
    turn = TRANSFORMS[name]
    if name in ("inverted", "noisy", "dim") and not dataset.train.x.is_floating_point():
        raise UserError(
            f"domain {name!r} needs inputs that are real numbers, but data set {dataset.name!r} "
            f"has {dataset.train.x.dtype}; use permuted, or data sets as domains."
        )
    if name in MOVING and dataset.target in ("dense", "token"):
        raise UserError(
            f"domain {name!r} moves the values of a row to other places, and y of "
            f"{dataset.name!r} is {TARGET_WORDS[dataset.target]}, which would stay; use inverted, "
            f"noisy, dim, or data sets as domains."
        )
    train = Pool(turn(dataset.train.x, Range(low, high, seed, 0)), dataset.train.y)
    test = Pool(turn(dataset.test.x, Range(low, high, seed, 1)), dataset.test.y)
    return dataset, (train, test)


def _beside(data: Dataset, other: Dataset) -> Dataset:
    """``data`` on the device of ``other``."""
    device = other.train.x.device
    train, test = (Pool(p.x.to(device), p.y.to(device)) for p in (data.train, data.test))
    return data._replace(train=train, test=test)


def _other(dataset: Dataset, name: str) -> Dataset:
    known = [*TRANSFORMS, *names()]
    if name not in known:
        raise UserError(f"unknown domain {name!r}; {suggestion(name, known)}.")
    if name == dataset.name:
        return dataset
    data = _beside(load_like(name, dataset), dataset)
    if (data.shape, data.classes, data.target) != (dataset.shape, dataset.classes, dataset.target):
        raise UserError(
            f"domain {name!r} has shape {data.shape} and {data.classes} classes, but the run's "
            f"data set {dataset.name!r} has shape {dataset.shape} and {dataset.classes}; domains "
            f"must agree in both."
        )
    if data.words != dataset.words:
        raise UserError(
            f"domain {name!r} numbers its words otherwise than the run's data set "
            f"{dataset.name!r}; load both with the option shared: [{dataset.name}, {name}]."
        )
    return data
