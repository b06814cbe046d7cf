"""A question put to many clients at once, recorded and replayed as their training is.

That takes a question which says so (``weighs_rows``): clients' rows are padded to one length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from shoal import tree
from shoal.engines.base import Member, Order
from shoal.engines.chunk import given_to
from shoal.engines.compiled import Compiled, given_axes, local_axes
from shoal.engines.loop import asked_view
from shoal.engines.numbers import known
from shoal.engines.trace import Untraceable
from shoal.engines.whole import stacked_whole
from shoal.local import Given, Local
from shoal.tree import Tree


def answers_together(
    compiled: Compiled, order: Order, question: Callable[..., Tree], payload: Tree
) -> list[Tree] | None:
    """Everybody's answer; None where clients cannot be asked at once."""
    if not (getattr(question, "weighs_rows", False) and compiled.stacked and order.members):
        return None
    groups: dict[int, list[int]] = {}  # places of members by the length they are padded to
    for place, member in enumerate(order.members):
        groups.setdefault(_length(len(member.train)), []).append(place)
    found: dict[int, Tree] = {}
    with torch.no_grad():
        for length, places in groups.items():
            members = [order.members[place] for place in places]
            try:
                answers = _answers(compiled, order, members, length, question, payload)
            except Untraceable:
                return None
            found |= zip(places, tree.unstack(answers), strict=False)
    return [found[place] for place in range(len(order.members))]


def _answers(
    compiled: Compiled,
    order: Order,
    members: Sequence[Member],
    length: int,
    question: Callable[..., Tree],
    payload: Tree,
) -> Tree:
    """A stack of answers; there may be more than members, since few sizes are recorded."""
    spare = (1 << (len(members) - 1).bit_length()) - len(members)
    stack = [*members, *[members[-1]] * spare]
    given = given_to(order, stack)
    local = Local(stacked_whole([member.train for member in stack], length), None)
    rate = known(order.rates[0], given.received.dtype, given.received.device)

    def mapped(given: Given, payload: Tree, rate: Tensor, local: Local) -> Tree:
        one: Callable[..., Tree] = lambda g, loc: question(  # noqa: E731
            asked_view(order, g, loc, rate, question), payload
        )
        return vmap(one, in_dims=(given_axes(given), local_axes(local)))(given, local)

    return compiled.run(question, mapped, (given, payload, rate, local), order.clock(0))


def _length(rows: int) -> int:
    """The next power of four: few lengths, and small clients are not padded to the largest.

    >>> [_length(rows) for rows in (1, 16, 17, 300)]
    [1, 16, 64, 1024]
    """
    return 1 << 2 * (((rows - 1).bit_length() + 1) // 2)
