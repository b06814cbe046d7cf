"""A worker's job in plain values: what an order and its members say, with tensors swapped out.

Whoever moves tensors (shared memory, an object store) gives two functions: ``out`` turns a tensor
into something that travels, ``back`` turns that into a tensor again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from shoal import tree
from shoal.engines.base import Member, Order
from shoal.local import Program
from shoal.tree import Tree
from shoal.types import ClientData, Pool

Out = Callable[[Tensor], object]
Back = Callable[[Any], Any]
Samples = Callable[[Tensor, Tensor | None], object]  # these rows (None: all) of a pool travel
PoolKey = Callable[[Pool], int | None]  # the number under which workers have a pool, if they do
Pools = Callable[[int], Pool]

_ORDER = tuple(f.name for f in fields(Order) if f.name not in ("program", "members"))
_MEMBER = tuple(f.name for f in fields(Member) if f.name not in ("train", "validation"))


@dataclass(frozen=True)
class Question:
    """A method of one of the program's parts; a part is named by its place."""

    part: int
    method: str
    payload: Tree

    def bound(self, program: Program) -> Callable[..., Tree]:
        asked: Callable[..., Tree] = getattr(program.method.parts[self.part], self.method)
        return asked


@dataclass(frozen=True)
class Job:
    """One share: train these members, or put a question to them."""

    program: int
    frame: Tree  # the order without its program and members
    members: Tree
    question: Question | None = None


def question_of(program: Program, asked: Callable[..., Tree], payload: Tree) -> Question | None:
    """How a worker finds the question; None if it is no method of the program's own parts."""
    part = id(getattr(asked, "__self__", None))
    places = [i for i, own in enumerate(program.method.parts) if id(own) == part]
    return Question(places[0], asked.__name__, payload) if places else None


def travelling(out: Out, value: Tree) -> Tree:
    """The tree with ``out`` of its tensors; everything else stays."""
    swapped: Back = lambda leaf: out(leaf) if isinstance(leaf, Tensor) else leaf  # noqa: E731
    return tree.apply(swapped, value)


def frame_of(order: Order, out: Out) -> Tree:
    return travelling(out, tuple(getattr(order, name) for name in _ORDER))


def members_of(
    order: Order, members: Sequence[Member], key: PoolKey, samples: Samples, out: Out
) -> Tree:
    """The members' data and memories. A pool that workers lack travels, as far as it is used."""
    whole = bool(order.program.method.eager_reason)  # such methods may remember rows of the pool
    packed: dict[int, object] = {}  # a whole pool travels once

    def data(given: ClientData | None) -> Tree:
        if given is None:
            return None
        number, pool = key(given.pool), given.pool.x
        x: object = None
        if number is None and whole:
            x = packed[id(pool)] = packed.get(id(pool)) or samples(pool, None)
        elif number is None:
            x = samples(pool, given.rows)
        rows = None if x is not None and not whole else given.rows
        return (number, x, given.count, *travelling(out, (rows, given.labels, given.weight)))

    return tuple(
        (
            travelling(out, tuple(getattr(m, name) for name in _MEMBER)),
            data(m.train),
            data(m.validation),
        )
        for m in members
    )


def order_from(job: Job, program: Program, pools: Pools, back: Back) -> Order:
    """The share as an order of its own."""
    values = dict(zip(_ORDER, tree.apply(back, job.frame), strict=True))
    members = tuple(_member(described, pools, back) for described in job.members)
    return Order(program=program, members=members, **values)


def no_pools(number: int) -> Pool:
    raise LookupError(f"pool {number} is not here")


def named_clients(members: Sequence[Member]) -> str:
    """Whose share it is, for a message."""
    names = [str(m.client) for m in members]
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"client {shown}" if len(names) == 1 else f"clients {shown}"


def _member(described: Tree, pools: Pools, back: Back) -> Member:
    own, train, validation = described
    values = dict(zip(_MEMBER, tree.apply(back, own), strict=True))
    data = _data(train, pools, back)
    assert data is not None
    return Member(train=data, validation=_data(validation, pools, back), **values)


def _data(described: Tree, pools: Pools, back: Back) -> ClientData | None:
    if described is None:
        return None
    number, x, count, rows, labels, weight = tree.apply(back, described)
    if rows is None:
        rows = torch.arange(x.shape[0])
    pool = Pool(x, labels) if number is None else pools(number)
    return ClientData(pool, rows, labels, count, weight)
