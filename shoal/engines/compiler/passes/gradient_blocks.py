"""Gradients of flat vectors, block by block.

Before: ``x - rate * cat([view(dW1), db1, view(dW2), ...])``, the gradient of a flat vector.
After: ``accumulate(x, -rate, blocks)``, which adds every block to its place in ``x``, a matrix
product by ``baddbmm`` itself; or, where the gradient is needed otherwise too (its norm, a rate per
client), ``assemble(blocks)``, which writes every block into its place in one buffer.

Applies to every concatenation along the last axis that has the shape of the carry's first entry.
The gradient of a table with more rows than a step looks up is not written out: its rows are added
to the table itself. That of a small bias, a sum over rows, is the product of ones with them. A sum
is taken apart only as far as nobody else reads its terms. Exact to rounding: the terms of a sum are
added in another order, the gradient last.

Serves: all; R8 1.2 (rows of a table); W2 1.05 (small biases); W5 2.06 and W1b 1.34 together with
rate_number, SCAFFOLD 1.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    aten,
    dtype,
    insert,
    is_number,
    is_tensor,
    op_name,
    same_kind,
    shape,
    times,
    value,
)

# A batched product into a part of a vector is one call of the matrix library for each client.
# For blocks smaller than this, one call for all and a copy costs less.
_SMALL_BLOCK = 4096
# Multiply-adds of one client up to which torch makes a product itself, wherever it is added.
_TINY_PRODUCT = 400


class GradientBlock(NamedTuple):
    """One block: where it is in the vector, the views that lead to it, and what goes there."""

    start: int
    size: int
    path: tuple[tuple[str, tuple[Any, ...]], ...]
    product: bool
    operands: tuple[Node, ...]
    rows: bool = False  # operands are row numbers and what is added to those rows
    linear: bool = False  # the product is made first, of operands for large_products' operator


def accumulate(total: Any, scale: Any, blocks: Any) -> Any:
    """Marks ``total + scale * gradient``; the emitted code spells it out."""
    return torch.empty_like(total)


def assemble(blocks: Any, like: Any) -> Any:
    """Marks the gradient as one vector; the emitted code spells it out."""
    return torch.empty_like(like)


def apply(graph: Graph) -> Graph | Refused:
    if not graph.carry or not any(_is_gradient(n, graph.carry[0]) for n in graph.fx.nodes):
        return graph
    new = graph.copy()
    fx, theta = new.fx, new.carry[0]
    for node in reversed(list(fx.nodes)):
        if node.users and _pieces(node) and _lone_gradient(node, theta, top=True):
            _accumulate_last(new, node, theta)
            fx.eliminate_dead_code()
    for node in list(fx.nodes):
        if _is_gradient(node, theta):
            with fx.inserting_before(node):
                marked = _mark(fx, assemble, (tuple(_blocks(node)), theta), theta)
            node.replace_all_uses_with(marked)
    fx.eliminate_dead_code()
    return new


def _mark(fx: FxGraph, target: Any, args: tuple[Any, ...], like: Node) -> Node:
    node = fx.call_function(target, args)
    node.meta["val"] = torch.empty(shape(like), dtype=dtype(like), device="meta")
    return node


def _is_gradient(node: Any, theta: Node) -> bool:
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
        if isinstance(alpha, Node):
            return []
        return [(left, 1), (right, alpha if name == "add" else -alpha)]
    if name == "mul" and is_number(right):
        return [(left, right)]
    if name == "div" and is_number(right) and not isinstance(right, Node):
        return [(left, 1 / right)]
    return []


def _lone_gradient(node: Any, theta: Node, top: bool = False) -> bool:
    """Whether a gradient that nobody else reads is one of the terms."""
    if not top and (not isinstance(node, Node) or len(node.users) != 1):
        return False
    if _is_gradient(node, theta):
        return not top
    return same_kind(node, theta) and any(_lone_gradient(t, theta) for t, _ in _pieces(node))


def _terms(fx: FxGraph, node: Any, factor: Any, theta: Node, top: bool) -> Any:
    if _is_gradient(node, theta) or not _lone_gradient(node, theta, top):
        pieces = _pieces(node) if isinstance(node, Node) and len(node.users) == 1 else []
        if len(pieces) == 1:  # a number times something: the number goes with the factor
            return [(pieces[0][0], times(fx, factor, pieces[0][1]))]
        return [(node, factor)]
    return [
        term
        for inner, f in _pieces(node)
        for term in _terms(fx, inner, times(fx, factor, f), theta, False)
    ]


def _accumulate_last(graph: Graph, node: Node, theta: Node) -> None:
    """Rewrite a sum so that the gradient's blocks are added last, in their places."""
    fx = graph.fx
    with fx.inserting_before(node):
        terms = _terms(fx, node, 1, theta, True)
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
            total = insert(fx, aten.mul.Tensor, *first)
        for term, factor in rest:
            total = insert(fx, aten.add.Tensor, total, term, alpha=factor)
        blocks = tuple([_by_product(graph, _by_rows(b)) for b in _blocks(gradient[0])])
        new = _mark(fx, accumulate, (total, gradient[1], blocks), theta)
    node.replace_all_uses_with(new)


def _blocks(gradient: Node) -> list[GradientBlock]:
    found, start = [], 0
    pieces: Any = gradient.args[0]
    for piece in pieces:
        size = shape(piece)[-1]
        if size:
            found.append(_block(piece, start, size, gradient))
        start += size
    return found


def _by_rows(block: GradientBlock) -> GradientBlock:
    """The gradient of a table as the rows that were looked up, where those are fewer."""
    node = block.operands[0]
    if op_name(node) != "embedding_dense_backward" or node.args[3:] != (-1, False):
        return block
    source: Any
    numbers: Any
    source, numbers, rows = node.args[:3]
    looked_up, width = value(numbers).numel(), shape(node)[1]
    if len(node.users) > 1 or looked_up >= rows or dtype(numbers) != torch.int64:
        return block
    fx = node.graph
    index = insert(fx, aten.reshape.default, numbers, [-1, 1])
    index = insert(fx, aten.expand.default, index, [looked_up, width])
    flat = insert(fx, aten.reshape.default, source, [looked_up, width])
    return block._replace(operands=(index, flat), rows=True)


def _by_product(graph: Graph, block: GradientBlock) -> GradientBlock:
    """The gradient of a small bias, a sum over rows, as a product that is added at once."""
    node = block.operands[0]
    source: Any = node.args[0] if node.args else None
    if op_name(node) != "sum" or node.args[1:] != ([1], True) or len(node.users) > 1:
        return block
    if len(shape(source)) != 3 or shape(source)[1] * shape(source)[2] >= _TINY_PRODUCT:
        return block
    clients, rows = shape(source)[:2]
    ones = torch.ones(clients, 1, rows, dtype=dtype(source), device=graph.device)
    return block._replace(product=True, operands=(graph.store_constant(ones), source))


def _block(piece: Node, start: int, size: int, gradient: Node) -> GradientBlock:
    """Walk up the views of a block; the inverse views lead from the vector to its place."""
    spot = value(gradient).narrow(-1, start, size)
    path: list[tuple[str, tuple[Any, ...]]] = []
    node = piece
    while (step := _inverse(node)) is not None:
        try:
            spot = getattr(spot, step[0])(*step[1])
        except (RuntimeError, ValueError):
            break  # the vector's strides do not allow this view
        path.append(step)
        node = node.args[0]  # type: ignore[assignment]
    product = _product(node)
    operands = product if product else (node,)
    return GradientBlock(start, size, tuple(path), bool(product), operands)


def _inverse(node: Node) -> tuple[str, tuple[Any, ...]] | None:
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


def _product(node: Node) -> tuple[Node, ...]:
    """The factors of a block that is a matrix product nobody else needs."""
    if op_name(node) in ("mm", "bmm") and len(node.users) == 1:
        clients = shape(node)[0] if op_name(node) == "bmm" else 1
        small = clients > 1 and value(node).numel() < clients * _SMALL_BLOCK
        return () if small else tuple(node.args)  # type: ignore[arg-type]
    return ()


def _scaled(factor: Any) -> bool:
    return isinstance(factor, Node) or bool(factor != 1)
