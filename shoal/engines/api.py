"""What an engine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from shoal.engines.client_round import Given, Program
from shoal.engines.sparse_rows import Scattered
from shoal.engines.sums import Sums
from shoal.tree import Tree
from shoal.types import ClientData, LastBatch, Model
from shoal.view import Clock


@dataclass(frozen=True)
class Member:
    """One client's share of an order."""

    client: int
    train: ClientData
    validation: ClientData | None
    memories: tuple[Tree, ...] | None  # None: never seen
    steps: int | None = None  # at most so many local steps


@dataclass(frozen=True)
class Order:
    """Train these members from this model. Complete: an engine needs nothing else."""

    program: Program
    model: Model  # what goes down
    initial: Tensor
    sent: tuple[Tree, ...]
    members: tuple[Member, ...]
    rates: tuple[float, ...]  # one a local epoch
    seed: int
    round: int
    session: int
    stage: int
    batch: int | None  # rows a step; None: all of a client's rows
    pad: int  # run-wide length of a ragged batch; 0: every client has equally many rows
    shuffle: bool = True
    uniform: bool | None = None  # how uploads will be weighed; None: an engine need not add up
    summed: bool = False  # nobody looks at a single delta, as long as all of them are finite
    last_batch: LastBatch = "keep"  # what becomes of rows that do not fill a batch
    # number and payload of the newest session_end by part, where clients keep their memories
    ends: tuple[tuple[int, tuple[int, Tree]], ...] = ()

    @property
    def epochs(self) -> int:
        return len(self.rates)

    def clock(self, epoch: int) -> Clock:
        return Clock(self.round, self.session, self.stage, epoch, self.epochs)

    def given(self, member: Member) -> Given:
        """What the member holds fixed over the round; makes first memories where needed."""
        theta = self.model.theta
        count = torch.tensor(member.train.count, dtype=theta.dtype, device=theta.device)
        given = Given(theta, self.initial, self.model.stats, count, (), self.sent)
        memories = member.memories
        if memories is None or any(m is None for m in memories):
            first = self.program.first_memories(given, self.clock(0))
            kept = memories or (None,) * len(first)
            memories = tuple(f if k is None else k for f, k in zip(first, kept, strict=True))
        return given._replace(memories=memories)


class Results(NamedTuple):
    """What some clients of an order did, stacked along the first axis, in the order's order.

    An engine may add up what finite uploads of an order send, where the order says how they weigh
    (``uniform``) and that nobody looks at single ones (``summed``), who might turn one away: such
    results are ``counted``, their ``delta`` has no rows, and the sum over all of them comes with
    the last results of the order. An engine that has seen each client's ``norms`` says them.
    """

    clients: tuple[int, ...]
    counts: tuple[float, ...]
    delta: Tensor | Scattered  # [C, P], or [0, P]
    stats: Tensor  # [C, S]
    payloads: tuple[Tree, ...]
    memories: tuple[Tree, ...]
    steps: tuple[int, ...]
    samples: tuple[int, ...]
    epochs: tuple[int, ...]
    norms: tuple[float, ...] | None = None
    counted: bool = False
    sums: Sums | None = None  # of all counted results of the order


class Engine(Protocol):
    """Runs orders. Results come in the order of the members, however they were computed."""

    name: str

    def train(self, order: Order) -> Iterator[Results]: ...

    def ask(self, order: Order, question: Callable[..., Tree], payload: Tree) -> list[Tree]: ...

    def close(self) -> None: ...


def spans(total: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut ``range(total)`` into pieces of the given sizes, the largest first.

    >>> list(spans(11, [8, 4, 2, 1]))
    [(0, 8), (8, 10), (10, 11)]
    """
    start = 0
    for size in sorted(sizes, reverse=True):
        while total - start >= size:
            yield start, start + size
            start += size
