"""How orders and results travel: columns of numpy arrays, which a node's workers read in place.

What many shares need (a pool of samples, the model that the run began with) goes to the cluster's
store once, and from there once to every node.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from shoal.core import tree
from shoal.core.tree import Tree
from shoal.core.types import ClientData, Pool, Reduction
from shoal.engines.api import EmbeddingSpan, Member, Order, Results, Scattered, Sums
from shoal.engines.client_round import ClientProgram

ALIGNED = 64  # bytes, as torch's own memory is
POOLS = 8  # of a share that are worth a place each; the rows of more are copied into one

# ---- leaves --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """A tensor on its way. Not a tuple, so that a tree sees one leaf."""

    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class AddedUp:
    """Rows that were added up where they were made: who gets them asks for their size alone."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Shelved:
    """A tensor under a number: whoever has it already need not fetch it."""

    number: int
    stored: Any  # an ObjectRef


def array(tensor: Tensor) -> Array:
    return Array(tensor.detach().contiguous().numpy())


def arrived(leaf: Any) -> Any:
    """A tree's leaf as it was before it travelled. Nobody writes to it: it may be others', too."""
    if isinstance(leaf, AddedUp):
        return torch.zeros((), dtype=leaf.dtype).expand(leaf.shape)
    if not isinstance(leaf, Array):
        return leaf  # what is no tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
        found = torch.from_numpy(leaf.values)
    # a matrix product's last bits may follow from where its numbers lie in memory
    return found if found.data_ptr() % ALIGNED == 0 else found.clone()


def travelling(out: Callable[[Tensor], object], value: Tree) -> Tree:
    """The tree with ``out`` of its tensors; everything else stays."""

    def swapped(leaf: Any) -> Any:
        return out(leaf) if isinstance(leaf, Tensor) else leaf

    return tree.apply(swapped, value)


class Shelf:
    """The driver's side: a tensor goes to the cluster once, and leaves it when nobody has it."""

    def __init__(self, put: Callable[[Array], Any]) -> None:
        self._put, self._next = put, 0
        self._known: dict[int, tuple[ref[Tensor], Shelved]] = {}

    def __call__(self, tensor: Tensor) -> Shelved:
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            key, shelved = id(tensor), Shelved(self._next, self._put(array(tensor)))
            known = ref(tensor, lambda _: self._known.pop(key, None)), shelved
            self._next += 1
            self._known[key] = known
        return known[1]


class Held:
    """A worker's side: the latest ``most`` tensors that it was told to fetch."""

    def __init__(self, get: Callable[[Any], Array], most: int = 64) -> None:
        self._get, self._most = get, most
        self._held: OrderedDict[int, Tensor] = OrderedDict()

    def __call__(self, leaf: object) -> Any:
        if not isinstance(leaf, Shelved):
            return arrived(leaf)
        if leaf.number not in self._held:
            self._held[leaf.number] = arrived(self._get(leaf.stored))
        self._held.move_to_end(leaf.number)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return self._held[leaf.number]


# ---- orders --------------------------------------------------------------------------------------
_FRAME = tuple(f.name for f in fields(Order) if f.name not in ("program", "members", "initial"))


@dataclass(frozen=True)
class Rows:
    """Data of some clients, one after the other."""

    pools: tuple[tuple[object, object], ...]
    of: tuple[int, ...]  # which pool each client's rows are of
    rows: Array
    labels: Array
    lengths: tuple[int, ...]
    counts: tuple[float, ...]
    weights: tuple[Array | None, ...] | None


@dataclass(frozen=True)
class Members:
    """The members of a share, column by column."""

    clients: tuple[int, ...]
    steps: tuple[int | None, ...] | None
    memories: Tree
    blocks: tuple[tuple[Any, ...], ...]  # where those are that stayed on the nodes
    train: Rows
    validation: tuple[tuple[int, ...], Rows] | None  # whose


def frame_of(order: Order, shelf: Shelf) -> Tree:
    """What all shares of an order have in common, but for the program."""
    return shelf(order.initial), *travelling(array, tuple(getattr(order, n) for n in _FRAME))


def order_from(
    frame: Tree, members: Members, program: ClientProgram, held: Held, read: Callable[[Any], Any]
) -> Order:
    """The order of a share; ``read`` finds a leaf of the members' memories."""
    initial, *values = frame
    others = dict(zip(_FRAME, tree.apply(held, tuple(values)), strict=True))
    found = unpacked(members, held, read)
    return Order(program=program, initial=held(initial), members=found, **others)


def packed(
    order: Order, shelf: Shelf, memories: Tree, blocks: tuple[tuple[Any, ...], ...]
) -> Members:
    """The order's members, and their memories as they travel. Methods that play client by client
    may remember rows of the pool, so those keep their numbers."""
    members, keep = order.members, bool(order.program.method.loop_only_reason)
    held = [(i, m.validation) for i, m in enumerate(members) if m.validation is not None]
    capped = any([m.steps is not None for m in members])
    return Members(
        tuple([m.client for m in members]),
        tuple([m.steps for m in members]) if capped else None,
        memories,
        blocks,
        packed_rows([m.train for m in members], shelf, keep),
        (tuple([i for i, _ in held]), packed_rows([d for _, d in held], shelf, keep))
        if held
        else None,
    )


def unpacked(members: Members, held: Held, read: Callable[[Any], Any]) -> tuple[Member, ...]:
    count = len(members.clients)
    validation: list[ClientData | None] = [None] * count
    if members.validation is not None:
        for place, data in zip(members.validation[0], clients_data(members.validation[1], held),
                               strict=True):  # fmt: skip
            validation[place] = data
    memories = members.memories or (None,) * count
    columns = (members.clients, clients_data(members.train, held), validation,
               tree.apply(read, memories), members.steps or (None,) * count)  # fmt: skip
    return tuple([Member(*row) for row in zip(*columns, strict=True)])


def packed_rows(data: Sequence[ClientData], shelf: Shelf, keep: bool) -> Rows:
    pools = {id(d.pool.x): d.pool for d in data}
    rows = torch.cat([d.rows for d in data])
    if len(pools) > POOLS and not keep:
        x = torch.cat([d.pool.x.index_select(0, d.rows) for d in data])
        y = torch.cat([d.pool.y.index_select(0, d.rows) for d in data])
        stored: tuple[tuple[object, object], ...] = ((array(x), array(y)),)
        of, rows = (0,) * len(data), torch.arange(len(rows))
    else:
        places = {key: place for place, key in enumerate(pools)}
        of = tuple([places[id(d.pool.x)] for d in data])
        stored = tuple((shelf(p.x), shelf(p.y)) for p in pools.values())
    weighed = any([d.weight is not None for d in data])
    return Rows(
        stored,
        of,
        array(rows),
        array(torch.cat([d.labels for d in data])),
        tuple([len(d) for d in data]),
        tuple([d.count for d in data]),
        tuple([None if d.weight is None else array(d.weight) for d in data]) if weighed else None,
    )


def clients_data(rows: Rows, held: Held) -> list[ClientData]:
    pools = [Pool(held(x), held(y)) for x, y in rows.pools]
    weights = rows.weights or (None,) * len(rows.of)
    columns = (
        rows.of,
        arrived(rows.rows).split(rows.lengths),
        arrived(rows.labels).split(rows.lengths),
        rows.counts,
        weights,
    )
    return [
        ClientData(pools[of], own, labels, count, arrived(weight))
        for of, own, labels, count, weight in zip(*columns, strict=True)
    ]


# ---- results -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sparse:
    """A :class:`~shoal.engines.api.Scattered` on its way."""

    size: int
    table: EmbeddingSpan
    chosen: Array
    small: Array


def sent(results: Results, program: ClientProgram) -> Results:
    """Results as they travel; of what was added up already, the sizes alone."""
    delta = results.delta
    if isinstance(delta, Scattered):
        away: Any = Sparse(delta.size, delta.table, array(delta.chosen), array(delta.small))
    else:
        away = _added_up(delta) if results.counted else array(delta)
    out = _added_up if results.counted else array
    keeps = [part.reduction is Reduction.STACK for part in program.method.parts]
    return results._replace(
        delta=away,
        stats=tree.apply(out, results.stats),
        payloads=tuple(
            tree.apply(array if apart else out, own)
            for apart, own in zip(keeps, results.payloads, strict=True)
        ),
        memories=tree.apply(array, results.memories),
        sums=None,
    )


def received(results: Results) -> Results:
    away: Any = results.delta
    if isinstance(away, Sparse):
        away = Scattered(away.size, away.table, arrived(away.chosen), arrived(away.small))
    return results._replace(
        delta=arrived(away),
        stats=arrived(results.stats),
        payloads=tree.apply(arrived, results.payloads),
        memories=tree.apply(arrived, results.memories),
    )


def own_sums(sums: Sums | None) -> Sums | None:
    """Sums that came, in memory that can be added to."""
    return None if sums is None else tree.apply(_writable, sums)


def _writable(leaf: Any) -> Any:
    return arrived(leaf).clone() if isinstance(leaf, Array) else leaf


def _added_up(leaf: Tensor) -> AddedUp:
    return AddedUp(tuple(leaf.shape), leaf.dtype)
