"""Inputs that differ by member and class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.worlds.changes.stages import Stage
from shoal.worlds.members.population import Labels, Population, Rows
from shoal.worlds.spec import Reader

# ---- transforms ----------------------------------------------------------------------------------
# Changes of inputs that depend on who holds a row or on its class: the biases of FedInit.
#
# The paper (section 5 and appendix B.1) changes the strength of the colour channels by Gaussian
# noise of the client's own, and the brightness by Gaussian noise of the class's own; it prints no
# magnitudes, so ``sigma`` is ours. Factors and offsets are functions of ``(seed, client)`` and
# ``(seed, class)``: more clients leave the first ones as they were.

CLIENT, CLASS = 1, 2


def _noise(seed: int, kind: int, number: int, size: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, kind, number]).standard_normal(size)


def _sigma(sigma: float) -> float:
    if not (np.isfinite(sigma) and sigma >= 0):
        raise UserError(f"sigma must be 0 or more, not {sigma!r}.")
    return float(sigma)


def channel_strength(x: Tensor, client: int, *, sigma: float = 0.1, seed: int = 0) -> Tensor:
    """Channel c of images [N, C, H, W] times ``1 + sigma z_c``, z standard normal by client."""
    if x.dim() != 4:
        raise UserError(
            f"channels need images (channels, height, width), not {tuple(x.shape[1:])}."
        )
    drawn = _noise(seed, CLIENT, client, x.shape[1])
    strength = torch.from_numpy(1.0 + _sigma(sigma) * drawn).to(x)
    return x * strength.view(1, -1, 1, 1)


def brightness(x: Tensor, y: Tensor, *, sigma: float = 0.1, seed: int = 0) -> Tensor:
    """Every value of a row of class c plus ``sigma z_c``, z standard normal by class."""
    return _lit(x, y, _offsets(y, sigma, seed))


def _offsets(y: Tensor, sigma: float, seed: int) -> NDArray[np.float64]:
    """What each class up to the highest of ``y`` gets."""
    if y.dim() != 1 or y.is_floating_point():
        raise UserError("brightness by class needs one class per row.")
    classes = int(y.max()) + 1 if len(y) else 0
    drawn = np.array([_noise(seed, CLASS, c, 1)[0] for c in range(classes)])
    return _sigma(sigma) * drawn


def _lit(x: Tensor, y: Tensor, offsets: NDArray[np.float64]) -> Tensor:
    offset = torch.from_numpy(offsets).to(x)
    return x + offset[y].view(-1, *[1] * (x.dim() - 1))


def biased(
    pool: Pool,
    parts: Sequence[NDArray[np.int64]],
    *,
    client_sigma: float = 0.1,
    class_sigma: float = 0.1,
    seed: int = 0,
    low: float | None = None,
    high: float | None = None,
) -> tuple[Pool, list[NDArray[np.int64]]]:
    """A pool in which every client has rows of its own, with both biases, and the new parts.

    Clients may share rows of ``pool`` (sampling with replacement), so their rows are copied, once.
    Values are clamped to ``low`` and ``high`` where given.
    """
    if not len(parts):
        raise UserError("biased needs at least one client, but got none.")
    ends = np.cumsum([0, *(len(rows) for rows in parts)])
    xs = pool.x.new_empty(int(ends[-1]), *pool.x.shape[1:])
    ys = pool.y.new_empty(int(ends[-1]), *pool.y.shape[1:])
    offsets = _offsets(pool.y, class_sigma, seed) if class_sigma else None
    for client, rows in enumerate(parts):
        at = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(pool.y.device)
        x, y = pool.x[at], pool.y[at]
        x = channel_strength(x, client, sigma=client_sigma, seed=seed) if client_sigma else x
        x = x if offsets is None else _lit(x, y, offsets)
        place = slice(int(ends[client]), int(ends[client + 1]))
        xs[place] = x if low is None and high is None else x.clamp(low, high)
        ys[place] = y
    out = [np.arange(a, b, dtype=np.int64) for a, b in pairwise(ends.tolist())]
    return Pool(xs, ys), out


# ---- bias ----------------------------------------------------------------------------------------
# Inputs that differ by who holds them and by their class: ``bias: {channels, brightness}``.
#
# FedInit (section 5) changes the strength of the colour channels by noise of the client's own and
# the brightness by noise of the class's own; :mod:`shoal.worlds.changes.input_bias` has both
# formulas. A row
# that several members hold looks different at each of them, so every member's rows are copied once.
#
# Deviations: the paper prints no magnitudes, so both are the user's. Test rows stay as they are
# ("for the test process, we use the raw images", its appendix B.1); rows that a member holds out
# for validation, or meets next in a stream, are its own and are biased like the rest. The authors'
# public code has neither bias.


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
