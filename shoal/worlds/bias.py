"""Inputs that differ by who holds them and by their class: ``bias: {channels, brightness}``.

FedInit (section 5) changes the strength of the colour channels by noise of the client's own and
the brightness by noise of the class's own; :mod:`shoal.data.transforms` has both formulas. A row
that several members hold looks different at each of them, so every member's rows are copied once.

Deviations: the paper prints no magnitudes, so both are the user's. Test rows stay as they are
("for the test process, we use the raw images", its appendix B.1); rows that a member holds out
for validation, or meets next in a stream, are its own and are biased like the rest. The authors'
public code has neither bias.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data.transforms import biased, brightness, channel_strength
from shoal.errors import UserError
from shoal.types import Pool
from shoal.worlds.classes import Labels
from shoal.worlds.population import Population, Rows
from shoal.worlds.spec import Reader
from shoal.worlds.timeline import Stage


@dataclass(frozen=True)
class Bias:
    """Standard deviations of a channel's strength by member and of the brightness by class."""

    channels: float
    brightness: float
    seed: int

    def saved(self, pool: Pool, members: int, classes: int | None) -> dict[str, Any]:
        """What the last member and the last class get, to prove that another machine draws the
        same."""
        ones = torch.ones(1, *pool.x.shape[1:], dtype=torch.float64)
        drawn: dict[str, Any] = {"channels": self.channels, "brightness": self.brightness}
        if self.channels:
            seen = channel_strength(ones, members - 1, sigma=self.channels, seed=self.seed)
            drawn["strength"] = seen[0, :, 0, 0].tolist()
        if self.brightness:
            last = torch.tensor([(classes or 1) - 1])
            seen = brightness(ones, last, sigma=self.brightness, seed=self.seed)
            drawn["offset"] = float(seen.reshape(-1)[0]) - 1.0
        return drawn


@dataclass(frozen=True, eq=False)
class Copied:
    """A population whose members have copies of their rows, one member after another."""

    origin: Population
    ends: NDArray[np.int64]  # [members + 1]: member m has the copies from ends[m] to ends[m + 1]

    def rows(self, member: int) -> Rows:
        return np.arange(self.ends[member], self.ends[member + 1], dtype=np.int64)

    def sizes(self) -> set[int]:
        return self.origin.sizes()

    def classes(self, members: Sequence[int]) -> Labels:
        return self.origin.classes(members)

    def saved(self) -> dict[str, Any]:
        return self.origin.saved()


def read_bias(value: Any, seed: int) -> Bias | None:
    """``bias: {channels: 0.1, brightness: 0.1}``; what is left out is 0."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"bias is {value!r}; it must be a mapping with channels, brightness or "
                        f"both, such as {{channels: 0.1, brightness: 0.1}}.")  # fmt: skip
    reader = Reader(value, "bias", ("channels", "brightness"))
    sigmas = [reader.at_least("channels"), reader.at_least("brightness")]
    return Bias(sigmas[0], sigmas[1], seed)


def with_bias(
    bias: Bias, pool: Pool, stages: Sequence[Stage], members: int, classes: int | None, sort: bool
) -> tuple[Pool, tuple[Stage, ...]]:
    """A pool of copies, and stages that point into it; ``sort`` keeps a stream's order of time.

    Stages that share a population and a domain share the copies too.
    """
    _check(bias, pool, classes)
    copied: dict[int, Copied] = {}
    places: dict[tuple[int, str], int] = {}
    pools: list[Pool] = []
    total, out = 0, []
    for stage in stages:
        key = id(stage.population)
        if key not in copied:
            copied[key] = Copied(stage.population, _ends(stage.population, members, pool))
        ends = copied[key].ends
        if (key, stage.block.name) not in places:
            places[key, stage.block.name] = total
            total += int(ends[-1])
            _check_bytes(total, pool)
            held = [_rows(stage, m, sort) for m in range(members)]
            seen, _ = biased(pool, held, client_sigma=bias.channels,
                             class_sigma=bias.brightness, seed=bias.seed)  # fmt: skip
            pools.append(seen)
        begin = places[key, stage.block.name]
        block = replace(stage.block, train=begin, train_rows=int(ends[-1]))
        out.append(replace(stage, population=copied[key], block=block))
    return Pool(_joined([p.x for p in pools]), _joined([p.y for p in pools])), tuple(out)


def _rows(stage: Stage, member: int, sort: bool) -> Rows:
    rows = stage.population.rows(member)
    return (np.sort(rows) if sort else rows) + stage.block.train


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _ends(population: Population, members: int, pool: Pool) -> NDArray[np.int64]:
    sizes = population.sizes()
    _check_bytes(members * min(sizes), pool)  # before a million members are asked for their rows
    if len(sizes) == 1:
        return np.arange(members + 1, dtype=np.int64) * sizes.pop()
    counts = [0, *(len(population.rows(m)) for m in range(members))]
    return np.cumsum(np.array(counts, dtype=np.int64))


def most_bytes() -> int:
    """Half of this machine's memory, and 8 GiB where that cannot be known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30


def _check(bias: Bias, pool: Pool, classes: int | None) -> None:
    if not pool.x.is_floating_point():
        raise UserError(f"bias needs inputs that are real numbers, but these have {pool.x.dtype}; "
                        f"leave it out.")  # fmt: skip
    if bias.channels and pool.x.dim() != 4:
        raise UserError(f"channels of bias needs images (channels, height, width), but a sample "
                        f"has shape {tuple(pool.x.shape[1:])}; use data with flat: false, or "
                        f"brightness alone.")  # fmt: skip
    if bias.brightness and classes is None:
        raise UserError("brightness of bias goes by class, and this data has none; leave it out.")


def _check_bytes(rows: int, pool: Pool) -> None:
    """Copies must leave room for the rest."""
    needed, most = rows * pool.x[:1].numel() * pool.x.element_size(), most_bytes()
    if needed > most:
        raise UserError(f"bias copies every member's rows, {rows:,} in all, which takes "
                        f"{needed / 2**30:.1f} GiB (at most {most / 2**30:.1f}); use fewer "
                        f"members, samples or stages.")  # fmt: skip
