"""What a client holds, changes, sees and sends in a round; one entry a part in the tuples."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from shoal.tree import Tree
from shoal.types import Batch


class Given(NamedTuple):
    """What a client holds fixed over a round."""

    received: Tensor
    initial: Tensor
    stats: Tensor
    n: Tensor
    memories: tuple[Tree, ...]
    sent: tuple[Tree, ...]
    batches: Tensor | None = None  # of one epoch; only where a part counts them


class Carry(NamedTuple):
    """What a local step changes."""

    x: Tensor
    stats: Tensor
    scratches: tuple[Tree, ...]
    optimizer: Tree
    rate_sum: Tensor


class Local(NamedTuple):
    """All of a client's data, where a part asks to see it outside the step."""

    train: Batch | None = None
    validation: Batch | None = None
    rows: Tensor | None = None  # of the pool, behind ``train``; the loop engine tells


class Ended(NamedTuple):
    """What a client sends and what it keeps."""

    delta: Tensor
    stats: Tensor
    payloads: tuple[Tree, ...]
    memories: tuple[Tree, ...]
