"""Trees of tensors (tuples and NamedTuples), the form in which parts keep state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # a Tensor, None, or a (Named)tuple of trees; the empty tuple is "no state"


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors, left to right; None is a place without a tensor."""
    found: list[Tensor] = []
    _gather(tree if isinstance(tree, tuple) else (tree,), found)
    return found


def _gather(branches: tuple[Any, ...], found: list[Tensor]) -> None:
    for branch in branches:  # a call only for what has branches of its own: this runs all the time
        if isinstance(branch, tuple):
            if branch:
                _gather(branch, found)
        elif branch is not None:
            found.append(branch)


def apply(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The same structure with ``function`` of every tensor."""
    if not isinstance(tree, tuple):
        return None if tree is None else function(tree)
    if not tree:
        return tree
    branches = [
        apply(function, b) if isinstance(b, tuple) or b is None else function(b) for b in tree
    ]
    return _like(tree, branches)


def rebuild(like: Tree, new_leaves: Sequence[Any]) -> Tree:
    """A tree of the same structure as ``like`` with other leaves."""
    supply = iter(new_leaves)
    return apply(lambda leaf: next(supply), like)


def _like(tree: tuple[Any, ...], branches: list[Any]) -> tuple[Any, ...]:
    kind = type(tree)
    if kind is tuple or not hasattr(kind, "_fields"):
        return tuple(branches)
    return kind(*branches)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose leaves have a new first axis.

    >>> stack([(torch.zeros(2),), (torch.ones(2),)])[0].shape
    torch.Size([2, 2])
    """
    columns = zip(*(leaves(t) for t in trees), strict=True)
    return rebuild(trees[0], [torch.stack(column) for column in columns])


def join(trees: Sequence[Tree]) -> Tree:
    """Stacks one behind the other as one stack."""
    if len(trees) == 1:
        return trees[0]
    columns = zip(*(leaves(t) for t in trees), strict=True)
    return rebuild(trees[0], [torch.cat(column) for column in columns])


def unstack(tree: Tree) -> list[Tree]:
    """Every row of a stack as a tree in memory of its own.

    >>> [own[0].tolist() for own in unstack((torch.arange(2),))]
    [0, 1]
    """
    apart: Callable[[Tensor], tuple[Tensor, ...]] = torch.unbind_copy  # type: ignore[assignment]
    columns = zip(*map(apart, leaves(tree)), strict=True)
    return [rebuild(tree, own) for own in columns]


def row(tree: Tree, index: int) -> Tree:
    return apply(lambda leaf: leaf[index], tree)


def expand(tree: Tree, rows: int) -> Tree:
    """The same tree ``rows`` times, as writable copies."""
    return apply(lambda leaf: leaf.expand(rows, *leaf.shape).clone(), tree)


def clone(tree: Tree) -> Tree:
    return apply(lambda leaf: leaf.clone(), tree)


def nbytes(tree: Tree) -> int:
    """Bytes of all leaves; a forgotten state (None) has none."""
    sizes: list[int] = [leaf.nbytes for leaf in leaves(tree)]
    return sum(sizes)
