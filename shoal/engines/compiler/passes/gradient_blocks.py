"""Gradients of flat vectors, block by block.

The gradient of ``layout.unflatten(theta)`` is one concatenation. Here it becomes either
``assemble`` (write every block into its place in one buffer) or, when it is only added to another
vector, ``accumulate`` (add every block to its place; a matrix product adds itself).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from shoal.engines.compiler.graph import (
    Recording,
    aten,
    dtype,
    insert,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    value,
    zeros_for,
)
from shoal.engines.compiler.passes.softmax_loss import times

# A batched product into a part of a vector is one call of the matrix library for each client.
# For blocks smaller than this, one call for all and a copy costs less.
_SMALL_BLOCK = 4096


class Block(NamedTuple):
    """One block: where it is in the vector, the views that lead to it, and what goes there."""

    start: int
    size: int
    path: tuple[tuple[str, tuple[Any, ...]], ...]
    product: bool
    operands: tuple[fx.Node, ...]


def accumulate(total: Any, scale: Any, blocks: Any) -> Any:
    """Marks ``total + scale * gradient``; the emitted code spells it out."""
    return torch.empty_like(total)


def assemble(blocks: Any, like: Any) -> Any:
    """Marks the gradient as one vector; the emitted code spells it out."""
    return torch.empty_like(like)


def use_blocks(recording: Recording, theta: fx.Node) -> None:
    """Turn every concatenated gradient into ``accumulate`` or ``assemble``."""
    graph = recording.graph
    for node in reversed(list(graph.nodes)):
        if node.users and _pieces(node) and _lone_gradient(node, theta, top=True):
            _accumulate_last(recording, node, theta)
            graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if _is_gradient(node, theta):
            with graph.inserting_before(node):
                blocks = tuple(_blocks(recording, node))
                new = _mark(graph, assemble, (blocks, theta), theta)
            node.replace_all_uses_with(new)
    graph.eliminate_dead_code()


def _mark(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: fx.Node) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = torch.empty(shape(like), dtype=dtype(like), device="meta")
    return node


def _is_gradient(node: Any, theta: fx.Node) -> bool:
    if op_name(node) != "cat" or not same_kind(node, theta):
        return False
    dim = node.args[1] if len(node.args) > 1 else 0
    return dim in (-1, len(shape(theta)) - 1) and all(map(is_tensor, node.args[0]))


def _pieces(node: Any) -> list[tuple[Any, Any]]:
    """A node as a sum of ``(term, factor)``; empty when it is no such sum."""
    name = op_name(node)
    if not is_tensor(node) or not dtype(node).is_floating_point:
        return []
    if name == "neg":
        return [(node.args[0], -1)]
    if len(node.args) != 2:
        return []
    left, right = node.args
    if name in ("add", "sub") and is_tensor(left) and is_tensor(right):
        alpha = node.kwargs.get("alpha", 1)
        if isinstance(alpha, fx.Node):
            return []
        return [(left, 1), (right, alpha if name == "add" else -alpha)]
    if name == "mul" and is_number(right):
        return [(left, right)]
    if name == "div" and is_number(right) and not isinstance(right, fx.Node):
        return [(left, 1 / right)]
    return []


def _lone_gradient(node: Any, theta: fx.Node, top: bool = False) -> bool:
    """Whether a gradient that nobody else reads is one of the terms."""
    if not top and (not isinstance(node, fx.Node) or len(node.users) != 1):
        return False
    if _is_gradient(node, theta):
        return not top
    return same_kind(node, theta) and any(_lone_gradient(t, theta) for t, _ in _pieces(node))


def _terms(graph: fx.Graph, node: Any, factor: Any, theta: fx.Node, top: bool) -> Any:
    if _is_gradient(node, theta) or not _lone_gradient(node, theta, top):
        return [(node, factor)]
    return [
        term
        for inner, f in _pieces(node)
        for term in _terms(graph, inner, times(graph, factor, f), theta, False)
    ]


def _accumulate_last(recording: Recording, node: fx.Node, theta: fx.Node) -> None:
    """Rewrite a sum so that the gradient's blocks are added last, in their places."""
    graph = recording.graph
    with graph.inserting_before(node):
        terms = _terms(graph, node, 1, theta, True)
        gradient = next((t for t in terms if _is_gradient(t[0], theta)), None)
        rest = [t for t in terms if t is not gradient]
        full = [t for t in rest if same_kind(t[0], node)]
        if gradient is None or not full:
            return
        # Best of all the parameters themselves, then anything that needs no scaling first.
        first = min(full, key=lambda t: (_scaled(t[1]), t[0].op != "placeholder"))
        rest.remove(first)
        total = first[0]
        if _scaled(first[1]):
            total = insert(graph, aten.mul.Tensor, *first)
        for term, factor in rest:
            total = insert(graph, aten.add.Tensor, total, term, alpha=factor)
        blocks = tuple(_blocks(recording, gradient[0]))
        new = _mark(graph, accumulate, (total, gradient[1], blocks), theta)
    node.replace_all_uses_with(new)


def _blocks(recording: Recording, gradient: fx.Node) -> list[Block]:
    found, start = [], 0
    pieces: Any = gradient.args[0]
    for piece in pieces:
        size = shape(piece)[-1]
        if size:
            found.append(_block(recording, piece, start, size, gradient))
        start += size
    return found


def _block(recording: Recording, piece: fx.Node, start: int, size: int, gradient: fx.Node) -> Block:
    """Walk up the views of a block; the inverse views lead from the vector to its place."""
    spot = zeros_for(gradient).narrow(-1, start, size)
    path: list[tuple[str, tuple[Any, ...]]] = []
    node = piece
    while (step := _inverse(node)) is not None:
        try:
            spot = getattr(spot, step[0])(*step[1])
        except (RuntimeError, ValueError):
            break  # the vector's strides do not allow this view
        path.append(step)
        node = node.args[0]  # type: ignore[assignment]
    product = _product(recording, node)
    operands = product if product else (node,)
    return Block(start, size, tuple(path), bool(product), operands)


def _inverse(node: fx.Node) -> tuple[str, tuple[Any, ...]] | None:
    name, source = op_name(node), node.args[0] if node.args else None
    if not is_tensor(source):
        return None
    if name in ("view", "_unsafe_view", "squeeze", "unsqueeze"):
        return "view", shape(source)  # type: ignore[arg-type]
    if name == "transpose":
        return "transpose", tuple(node.args[1:])
    if name == "t":
        return "t", ()
    if name == "permute":
        asked: Any = node.args[1]
        order = [d % len(shape(node)) for d in asked]
        return "permute", tuple(order.index(d) for d in range(len(order)))
    return None


def _product(recording: Recording, node: fx.Node) -> tuple[fx.Node, ...]:
    """The factors of a block that is a matrix product nobody else needs."""
    if op_name(node) in ("mm", "bmm") and len(node.users) == 1:
        clients = shape(node)[0] if op_name(node) == "bmm" else 1
        small = clients > 1 and value(node).numel() < clients * _SMALL_BLOCK
        return () if small else tuple(node.args)  # type: ignore[arg-type]
    return ()


def _scaled(factor: Any) -> bool:
    return isinstance(factor, fx.Node) or bool(factor != 1)
