"""An order cut into shares, each the work of one worker at a time.

Where clients are stacked, the plan and its chunks are those of one machine, and a share is a few
neighbouring branches of the tree along which chunks are added up
(:class:`~shoal.engines.api.SumTree`). So bits follow from the order alone, never from the number of
workers or from how fast they are; those only say how small shares are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.core.tree import Tree
from shoal.engines.api import FAN, Member, Order
from shoal.engines.client_round import ClientProgram
from shoal.engines.stacked.plan import StackPlan

MODELS = 4  # sums that a worker sends back in a round, at most on average
NEAR = 1.05  # of the shortest possible round: shares need not be smaller
ROW_BYTES = 2**26  # of single changes that one share may send back
WORTH = 0.05  # seconds that a share should take: giving it out and taking it in is some 2 ms


class Branch(NamedTuple):
    """A branch of the order's tree, so many levels above the chunks, and how many it has."""

    height: int
    place: int
    chunks: int


class Share(NamedTuple):
    """Members ``begin..end`` of an order. With a plan they are some branches of the order's tree;
    without one the worker plans, or trains them one by one."""

    begin: int
    end: int
    plan: StackPlan | None = None
    branches: tuple[Branch, ...] = ()


def shares_of(
    order: Order, plan: StackPlan | None, workers: int, group: int = 1, pace: float = math.inf
) -> list[Share]:
    """Shares of nearly equal work for so many workers. Without a plan, groups of ``group``
    consecutive members stay together. ``pace``: seconds that a worker takes for a row, where that
    is known; small branches then go out together."""
    if plan is None:
        groups = -(-len(order.members) // group)
        count = min(groups, MODELS * workers)
        cuts = [min(len(order.members), group * (groups * i // count)) for i in range(count)]
        return [Share(*ends) for ends in zip(cuts, [*cuts[1:], len(order.members)], strict=True)]
    costs = [cost_of(order, order.members[begin:end]) for begin, end in plan.spans]
    theta, most = order.model.theta, len(order.members)
    if not order.summed:
        most = max(1, ROW_BYTES // (theta.numel() * theta.element_size()))
    largest = max(1, most * len(costs) // len(order.members))
    found = branches(costs, workers, largest)
    turns = min(len(found), pace * sum(costs) / WORTH) / workers  # of every worker
    shares = workers * max(1, int(turns)) if order.summed else len(found)
    sizes = [sum(costs[slice(*_chunks(branch, len(costs)))]) for branch in found]
    return [_share(plan, found[begin:end]) for begin, end in runs(sizes, shares)]


def runs(costs: Sequence[int], count: int) -> list[tuple[int, int]]:
    """So many runs of neighbours, or fewer, that cost about the same.

    >>> runs([4, 1, 1, 1, 1, 1, 1], 2), runs([1, 1, 9], 2), runs([1, 1], 5)
    ([(0, 2), (2, 7)], [(0, 2), (2, 3)], [(0, 1), (1, 2)])
    """
    total, so_far, cuts = sum(costs), 0, [0]
    for i, cost in enumerate(costs):
        # the middle of what would come says on which side of the next cut it is
        if i > cuts[-1] and (so_far + cost / 2) * count > total * len(cuts) and len(cuts) < count:
            cuts.append(i)
        so_far += cost
    return list(zip(cuts, [*cuts[1:], len(costs)], strict=True))


def branches(
    costs: Sequence[int], workers: int, largest: int | None = None
) -> list[tuple[int, int]]:
    """Height and place of the branches that workers take one after the other, the left one first:
    as few as make the round about as short as it can be, of at most ``largest`` chunks each.

    >>> branches([1] * 64, 2), branches([1] * 10, 2)
    ([(2, 0), (2, 1), (2, 2), (2, 3)], [(1, 0), (0, 4), (0, 5), (0, 6), (0, 7), (0, 8), (0, 9)])
    >>> branches([1] * 64, 1), branches([5, 1, 1], 2)
    ([(3, 0)], [(0, 0), (0, 1), (0, 2)])
    """
    chunks, height = len(costs), 0
    while FAN**height < chunks:
        height += 1
    found = [(height, 0)]
    ideal = max(sum(costs) / workers, max(costs))

    def cost(branch: tuple[int, int]) -> int:
        begin, end = _chunks(branch, chunks)
        return sum(costs[begin:end])

    def size(branch: tuple[int, int]) -> int:
        begin, end = _chunks(branch, chunks)
        return end - begin

    best, shortest = found, _length(map(cost, found), workers)
    while True:
        wide = [b for b in found if size(b) > (largest or chunks) and b[0]]
        if shortest <= NEAR * ideal and not wide:
            return best
        spare = MODELS * workers - len(found) + 1
        fit = wide or [b for b in found if b[0] and len(_children(b, chunks)) <= spare]
        if not fit:
            return best
        split = max(fit, key=lambda b: (cost(b), b[1]))
        at = found.index(split)
        found = [*found[:at], *_children(split, chunks), *found[at + 1 :]]
        length = _length(map(cost, found), workers)
        if wide or length < shortest:
            best, shortest = found, length


def _chunks(branch: tuple[int, int], chunks: int) -> tuple[int, int]:
    height, place = branch
    return place * FAN**height, min(chunks, (place + 1) * FAN**height)


def _children(branch: tuple[int, int], chunks: int) -> list[tuple[int, int]]:
    (height, place), (_, end) = branch, _chunks(branch, chunks)
    below = FAN ** (height - 1)
    return [(height - 1, p) for p in range(FAN * place, FAN * (place + 1)) if p * below < end]


def _length(costs: Iterator[int], workers: int) -> int:
    """When the last is done if everybody takes the next one as soon as he is free."""
    free = [0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def cost_of(order: Order, some: Sequence[Member] | None = None) -> int:
    """About how many rows these members (or all) train on."""
    members = order.members if some is None else some
    rows = sum([len(m.train) for m in members])
    caps = [m.steps for m in members if m.steps is not None]
    if order.batch is None or len(caps) < len(members):
        return rows * order.epochs
    return min(rows * order.epochs, sum(caps) * order.batch)


def _share(plan: StackPlan, some: Sequence[tuple[int, int]]) -> Share:
    reach = [_chunks(branch, len(plan.spans)) for branch in some]
    own = [Branch(*branch, last - first) for branch, (first, last) in zip(some, reach, strict=True)]
    spans = plan.spans[reach[0][0] : reach[-1][1]]
    return Share(spans[0][0], spans[-1][1], _only(plan, spans), tuple(own))


def _only(plan: StackPlan, spans: Sequence[tuple[int, int]]) -> StackPlan:
    """The plan of these chunks, whose first member is number 0."""
    begin = spans[0][0]
    return plan._replace(spans=tuple((b - begin, e - begin) for b, e in spans), why=())


def part_of(order: Order, share: Share) -> Order:
    """The share as an order of its own, which remembers what follows from the whole."""
    planned = share.plan is not None and order.batch is None
    longest = max([len(m.train) for m in order.members]) if planned else 0
    return replace(order, members=order.members[share.begin : share.end], longest=longest)


def cut(
    order: Order, plan: StackPlan | None, own: Sequence[Branch]
) -> Iterator[tuple[Order, StackPlan, int]]:
    """The branches of a share as orders of their own, with their plans and heights."""
    first = 0
    for branch in own:
        assert plan is not None, "only what is planned has branches"
        spans = plan.spans[first : first + branch.chunks]
        members = order.members[spans[0][0] : spans[-1][1]]
        yield replace(order, members=members), _only(plan, spans), branch.height
        first += branch.chunks


@dataclass(frozen=True)
class Question:
    """A method of one of the program's parts; a part is named by its place."""

    part: int
    method: str
    payload: Tree

    def bound(self, program: ClientProgram) -> Callable[..., Tree]:
        asked: Callable[..., Tree] = getattr(program.method.parts[self.part], self.method)
        return asked


def question_of(
    program: ClientProgram, asked: Callable[..., Tree], payload: Tree
) -> Question | None:
    """How a worker finds the question; None if it is no method of the program's own parts."""
    part = id(getattr(asked, "__self__", None))
    places = [i for i, own in enumerate(program.method.parts) if id(own) == part]
    return Question(places[0], asked.__name__, payload) if places else None


def named_clients(members: Sequence[Member]) -> str:
    """Whose share it is, for a message."""
    names = [str(m.client) for m in members]
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"client {shown}" if len(names) == 1 else f"clients {shown}"
