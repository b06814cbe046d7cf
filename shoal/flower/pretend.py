"""A member that the server plays itself, on made-up rows, to learn what a reply looks like.

Structure, types and shapes of what a method sends follow from method and model, not from anybody's
data. So the server needs no majority to tell a payload of the right form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from shoal import tree
from shoal.engines import api as base
from shoal.engines.loop import question_view, train_one
from shoal.flower.agreement import Expects
from shoal.tree import Tree
from shoal.types import ClientData, Pool

ROWS = 4  # batch normalisation needs more than one


class Pretender(Protocol):
    """Says what a member would send."""

    def upload(self, order: base.Order) -> Tree: ...

    def answer(self, order: base.Order, question: Callable[..., Tree], payload: Tree) -> Tree: ...


class Pretended:
    """A member with a few rows of the agreed form that say nothing."""

    def __init__(self, expects: Expects) -> None:
        draw = torch.Generator().manual_seed(0)
        if expects.vocabulary:
            x = torch.randint(expects.vocabulary, (ROWS, *expects.shape), generator=draw)
        else:
            x = torch.rand((ROWS, *expects.shape), generator=draw)
        y = torch.arange(ROWS) % expects.classes
        self.data = ClientData(Pool(x, y), torch.arange(ROWS), y, float(ROWS))

    def _order(self, order: base.Order) -> tuple[base.Order, base.Member]:
        member = base.Member(0, self.data, self.data, None, None)
        return replace(
            order, members=(member,), pad=0, batch=min(order.batch or ROWS, ROWS)
        ), member

    def upload(self, order: base.Order) -> Tree:
        """Statistics and payloads of a member's upload."""
        results = train_one(*self._order(order))
        return results.stats[0], tree.row(results.payloads, 0)

    def answer(self, order: base.Order, question: Callable[..., Tree], payload: Tree) -> Tree:
        asked, member = self._order(order)
        found: Tree = question(question_view(asked, member, question), payload)
        return found
