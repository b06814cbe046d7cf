"""Trees of tensors (tuples and NamedTuples), the form in which parts keep state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Tree = Any  # a Tensor, or a (Named)tuple of trees; the empty tuple is "no state"


def leaves(tree: Tree) -> list[Tensor]:
    return list(tree_flatten(tree)[0])


def rebuild(like: Tree, new_leaves: Sequence[Any]) -> Tree:
    """A tree of the same structure as ``like`` with other leaves."""
    return tree_unflatten(list(new_leaves), tree_flatten(like)[1])


def apply(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    return tree_map(function, tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose leaves have a new first axis.

    >>> stack([(torch.zeros(2),), (torch.ones(2),)])[0].shape
    torch.Size([2, 2])
    """
    columns = zip(*(leaves(t) for t in trees), strict=True)
    return rebuild(trees[0], [torch.stack(column) for column in columns])


def row(tree: Tree, index: int) -> Tree:
    return apply(lambda leaf: leaf[index], tree)


def expand(tree: Tree, rows: int) -> Tree:
    """The same tree ``rows`` times, as writable copies."""
    return apply(lambda leaf: leaf.expand(rows, *leaf.shape).clone(), tree)


def clone(tree: Tree) -> Tree:
    return apply(lambda leaf: leaf.clone(), tree)


def nbytes(tree: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
