"""An order cut into shares, each the work of one worker at a time.

The cuts follow from the order alone, never from the number of workers: a share is trained as a
stack, and a stack's size may change the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Pool
from shoal.engines.api import Member, Order
from shoal.engines.client_round import ClientProgram

WORTH = 20_000_000  # multiply-adds below which a message costs more than it saves
CACHE_BYTES = 4 * 2**20  # of the models of a stack
SHARED_WEIGHTS = 64  # a convolution uses a weight about so often for one sample


def work_of(order: Order, member: Member) -> int:
    """About how many multiply-adds a member's round takes."""
    rows = len(member.train) * order.epochs
    if member.steps is not None:
        rows = min(rows, member.steps * (order.batch or len(member.train)))
    reuse = 1 if order.program.task.stackable else SHARED_WEIGHTS
    return max(1, rows) * order.model.theta.numel() * reuse


def shares_of(order: Order) -> list[tuple[Member, ...]]:
    """Consecutive members: enough shares to balance workers, each worth a message."""
    members = order.members
    if not members:
        return []
    mean = max(1, sum(work_of(order, m) for m in members) // len(members))
    size = -(-WORTH // mean)
    if order.program.task.stackable and not order.program.method.loop_only_reason:
        theta = order.model.theta
        cached = max(1, CACHE_BYTES // (theta.numel() * theta.element_size()))
        size = max(size, min(cached, -(-len(members) // 8)))
    count = -(-len(members) // size)
    if count > 1:  # a multiple of four comes out even on the usual numbers of workers
        count = min(len(members), 4 * -(-count // 4))
    cuts = [len(members) * i // count for i in range(count + 1)]
    return [members[i:j] for i, j in zip(cuts, cuts[1:], strict=False)]


Out = Callable[[Tensor], object]
Back = Callable[[Any], Any]
Samples = Callable[[Tensor, Tensor | None], object]  # these rows (None: all) of a pool travel

_ORDER = tuple(f.name for f in fields(Order) if f.name not in ("program", "members"))
_MEMBER = tuple(f.name for f in fields(Member) if f.name not in ("train", "validation"))


@dataclass(frozen=True)
class Question:
    """A method of one of the program's parts; a part is named by its place."""

    part: int
    method: str
    payload: Tree

    def bound(self, program: ClientProgram) -> Callable[..., Tree]:
        asked: Callable[..., Tree] = getattr(program.method.parts[self.part], self.method)
        return asked


@dataclass(frozen=True)
class ShareJob:
    """One share: train these members, or put a question to them."""

    program: int
    frame: Tree  # the order without its program and members
    members: Tree
    question: Question | None = None


def question_of(
    program: ClientProgram, asked: Callable[..., Tree], payload: Tree
) -> Question | None:
    """How a worker finds the question; None if it is no method of the program's own parts."""
    part = id(getattr(asked, "__self__", None))
    places = [i for i, own in enumerate(program.method.parts) if id(own) == part]
    return Question(places[0], asked.__name__, payload) if places else None


def travelling(out: Out, value: Tree) -> Tree:
    """The tree with ``out`` of its tensors; everything else stays."""

    def swapped(leaf: Any) -> Any:
        return out(leaf) if isinstance(leaf, Tensor) else leaf

    return tree.apply(swapped, value)


def frame_of(order: Order, out: Out) -> Tree:
    return travelling(out, tuple(getattr(order, name) for name in _ORDER))


def members_of(order: Order, members: Sequence[Member], samples: Samples, out: Out) -> Tree:
    """The members' data and memories. A pool travels as far as it is used."""
    whole = bool(
        order.program.method.loop_only_reason
    )  # such methods may remember rows of the pool
    packed: dict[int, object] = {}  # a whole pool travels once

    def data(given: ClientData | None) -> Tree:
        if given is None:
            return None
        pool, rows = given.pool.x, given.rows if whole else None
        if whole and id(pool) not in packed:
            packed[id(pool)] = samples(pool, None)
        x = packed[id(pool)] if whole else samples(pool, given.rows)
        return (x, given.count, *travelling(out, (rows, given.labels, given.weight)))

    return tuple(
        (
            travelling(out, tuple(getattr(m, name) for name in _MEMBER)),
            data(m.train),
            data(m.validation),
        )
        for m in members
    )


def order_from(job: ShareJob, program: ClientProgram, back: Back) -> Order:
    """The share as an order of its own."""
    values = dict(zip(_ORDER, tree.apply(back, job.frame), strict=True))
    members = tuple(_member(described, back) for described in job.members)
    return Order(program=program, members=members, **values)


def named_clients(members: Sequence[Member]) -> str:
    """Whose share it is, for a message."""
    names = [str(m.client) for m in members]
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"client {shown}" if len(names) == 1 else f"clients {shown}"


def _member(described: Tree, back: Back) -> Member:
    own, train, validation = described
    values = dict(zip(_MEMBER, tree.apply(back, own), strict=True))
    data = _data(train, back)
    assert data is not None
    return Member(train=data, validation=_data(validation, back), **values)


def _data(described: Tree, back: Back) -> ClientData | None:
    if described is None:
        return None
    x, count, rows, labels, weight = tree.apply(back, described)
    if rows is None:
        rows = torch.arange(x.shape[0])
    return ClientData(Pool(x, labels), rows, labels, count, weight)
