"""The reach of a part that asks one member after another: a question is put to all of them at once.

Answers depend on the member, the question and the payload alone, so they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import tree
from shoal.reach import Reach
from shoal.tree import Tree
from shoal.types import Model


class _Asked(NamedTuple):
    """The last question that everybody was asked."""

    question: Callable[..., Tree]
    payload: Tree
    answers: dict[int, Tree]


@dataclass(frozen=True)
class AskedAhead:
    """The verbs of ``reach`` for as long as the federation stays as it is."""

    reach: Reach
    members: tuple[int, ...]  # who will be asked
    _last: list[_Asked] = field(default_factory=list, repr=False)

    def ask(
        self, question: Callable[..., Tree], payload: Tree, members: Sequence[int]
    ) -> list[Tree]:
        # other questions may cost more for somebody who is never asked than they save
        if not getattr(question, "weighs_rows", False) or not set(members) <= set(self.members):
            return self.reach.ask(question, payload, members)
        last = self._last[0] if self._last else None
        if last is None or last.question != question or not _same(last.payload, payload):
            answers = self.reach.ask(question, payload, self.members)
            last = _Asked(question, payload, dict(zip(self.members, answers, strict=True)))
            self._last[:] = [last]
        return [last.answers[member] for member in members]

    def rehearse(self, start: Tensor | Model, rounds: int, rate: float) -> Tensor:
        return self.reach.rehearse(start, rounds, rate)

    def remembered(self, members: Sequence[int]) -> list[int]:
        return self.reach.remembered(members)


def _same(a: Tree, b: Tree) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in pairs)
