"""Words that every other module uses: data of a client, batches, outputs, uploads, shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from shoal.core.errors import UserError
from shoal.core.states import state

# What becomes of rows that do not fill a batch: one of their own, none, or the one before gets them
LastBatch = Literal["keep", "drop", "merge"]

# What is learnt of a row, and what ``y`` is then: class [n] int64; multi_label [n, L] float32 of 0
# and 1; number [n] or [n, d] float32; dense (a class per pixel) [n, H, W] int64; token (a class per
# position) [n, T] int64
Target = Literal["class", "multi_label", "number", "dense", "token"]
TARGETS: tuple[Target, ...] = get_args(Target)
TARGET_WORDS: dict[Target, str] = {  # as sentences say it
    "class": "one class per row",
    "multi_label": "several labels per row, each 0 or 1",
    "number": "numbers",
    "dense": "a class per pixel",
    "token": "a class per position",
}

Kind = str  # one of KINDS
KINDS = ("members", "concept", "domain", "classes", "noticed")


class Input(NamedTuple):
    """One of several inputs of a network: what its ``forward`` calls it, the shape of a row, and
    whether it is whole numbers."""

    name: str
    shape: tuple[int, ...]
    whole: bool


class Pool(NamedTuple):
    """Samples that clients point into: row r is the pair ``(x[r], y[r])``. Several inputs stand
    side by side in ``x [n, width]`` (:func:`joined_inputs`)."""

    x: Tensor
    y: Tensor


def joined_inputs(named: Mapping[str, Tensor]) -> tuple[Tensor, tuple[Input, ...]]:
    """Several inputs as one floating tensor, a row each, and how to take them apart.

    >>> x, inputs = joined_inputs({"kind": torch.tensor([3, 1]), "sizes": torch.ones(2, 2)})
    >>> x.tolist(), split_inputs(x, inputs)["kind"].tolist()
    ([[3.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [3, 1])
    """
    inputs = tuple(
        Input(name, tuple(t.shape[1:]), not t.is_floating_point()) for name, t in named.items()
    )
    columns = [t.flatten(1) if t.dim() > 1 else t.unsqueeze(1) for t in named.values()]
    kinds = {t.dtype for t in columns if t.is_floating_point()} or {torch.float32}
    kind = torch.float64 if torch.float64 in kinds else torch.float32
    for name, column in zip(named, columns, strict=True):
        if not torch.equal(column.to(kind).to(column.dtype), column):
            raise UserError(f"input {name!r} has numbers that {str(kind)[6:]} cannot hold exactly")
    return torch.cat([column.to(kind) for column in columns], 1), inputs


def split_inputs(x: Tensor, inputs: Sequence[Input]) -> dict[str, Tensor]:
    """Each input of some rows by name."""
    parts = torch.split_with_sizes(x, [prod(one.shape) for one in inputs], -1)
    return {
        one.name: (part.to(torch.int64) if one.whole else part).reshape(-1, *one.shape)
        for one, part in zip(inputs, parts, strict=True)
    }


@dataclass(frozen=True)
class ClientData:
    """The samples of one client: rows of a pool, with the labels the client sees.

    ``labels`` differs from ``pool.y[rows]`` when the client's concept has drifted.
    ``count`` is the ``n_i`` of the aggregation weights; it is the number of rows unless the
    problem says otherwise (a quadratic client is one row that stands for n samples).
    ``weight`` weighs the rows inside the loss (None: all equal).
    """

    pool: Pool
    rows: Tensor
    labels: Tensor
    count: float
    weight: Tensor | None = None

    def __len__(self) -> int:
        return self.rows.size(0)  # many times per round: half the time of the shape's first


class Batch(NamedTuple):
    """A mini-batch. ``weight`` is None when every row is real and counts the same.

    ``key`` (0-d, whole numbers) is what layers draw with when this batch is trained on; without
    one, layers that draw do as in evaluation.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    key: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *more: Tensor) -> Batch:
        """From its tensors as they stand in a tree: a weight is floating, a key is not."""
        weight, key = (
            next((t for t in more if t.is_floating_point() is real), None) for real in (True, False)
        )
        return cls(x, y, weight, key)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row, padding left out."""
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum().clamp_min(1e-12)


class Outputs(NamedTuple):
    """What a model says of a batch. ``logits`` are ``[n, C]`` where a row has one class;
    ``shoal/metrics/losses.py`` has their shapes for every target. ``stats`` are the running
    statistics after the pass."""

    logits: Tensor
    features: Tensor
    stats: Tensor
    extra: tuple[Tensor, ...] = ()


class Terms(NamedTuple):
    """What a part adds to the local objective.

    ``weight`` multiplies the base loss; ``extra`` is added to it; ``pull`` is the gradient of a
    further term, given in closed form because that is cheaper than differentiating it.
    """

    weight: float | Tensor = 1.0
    extra: Tensor | None = None
    pull: Tensor | None = None


@state("federation.model")
class Model(NamedTuple):
    """A global model: trainable vector and running statistics (empty for most networks)."""

    theta: Tensor
    stats: Tensor

    def to(self, device: torch.device | str) -> Model:
        """The same model on a device."""
        return Model(self.theta.to(device), self.stats.to(device))


class Work(NamedTuple):
    """What a client really did in a round, as 0-d tensors; nothing recomputes it."""

    steps: Tensor
    samples: Tensor
    epochs: Tensor
    rate_sum: Tensor


class Reduction(StrEnum):
    """How the server combines the payloads that a part's clients upload."""

    MEAN = "mean"  # with the aggregation weights
    SUM = "sum"  # plain sum, in client order
    STACK = "stack"  # one row per client, in client order


@dataclass(frozen=True)
class Shift:
    """Something changed at the start of this round."""

    round: int
    kinds: frozenset[Kind]
    announced: bool = True
    note: str = ""


class Job(NamedTuple):
    """One client's work in a round: which model it trains, on which blocks of its data.

    A block is what the client held at a round, and is named by that round.
    """

    client: int
    model: int = 0
    blocks: tuple[int, ...] | None = None  # None: what the client holds now
    concept: int | None = None  # an oracle's: the client's data as it is under this concept


@dataclass
class Rejected:
    """An upload that was dropped, and why."""

    client: int
    reason: str
