"""Stacks of trees, taken apart and put together."""

from __future__ import annotations

import torch

from shoal.core import tree


def test_rows_of_a_stack_are_copies_and_stack_again() -> None:
    stack = (torch.arange(6.0).view(3, 2), (), (None, torch.arange(3)))
    rows = tree.unstack(stack)
    assert len(rows) == 3 and rows[0][1] == () and rows[0][2][0] is None
    rows[0][0].zero_()
    assert stack[0][0].tolist() == [0.0, 1.0]
    again = tree.stack(tree.unstack(stack))
    assert torch.equal(again[0], stack[0]) and torch.equal(again[2][1], stack[2][1])


def test_stacks_are_joined_in_order() -> None:
    one, two = ((torch.full((n, 2), float(n)),) for n in (1, 2))
    assert tree.join([one]) is one
    assert tree.join([one, two])[0].tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
