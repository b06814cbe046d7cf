"""A step that does not hold the first layer's weights, only what changed them.

Under plain SGD the weights of a layer that reads the samples move by products of the samples and
the gradients of its outputs: after a few steps ``W = W0 + D' X`` with the samples ``X`` seen so far
and ``D``, their gradients times minus the rate. Its output for samples ``x`` is then
``x W0' + (x X') D``: the weights themselves, which are most of many a model, need not be written,
nor read again, for any client. Here a traced step is rewritten so that it is handed that output,
and hands out its rows of ``D``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from shoal.engines.compiler.graph import (
    Recording,
    aten,
    base,
    dtype,
    insert,
    is_number,
    is_view,
    op_name,
    shape,
    value,
    without_memory,
    zeros_for,
)
from shoal.engines.compiler.passes.gradient_blocks import Block, accumulate

_FLATTENS = ("view", "_unsafe_view")


@dataclass(frozen=True)
class Factors:
    """Where the weights were in the vector, and the layer's sizes."""

    start: int
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        return self.inputs * self.outputs


def factor_out(recording: Recording, theta: fx.Node, x: fx.Node) -> tuple[Factors, fx.Node] | None:
    """Rewrite a step, and say what was taken out and which new input takes the rows of ``D``.

    ``theta`` becomes the rest of the model, ``x`` the layer's output without its bias. None where
    the step is not of that kind; the graph is then as it was.
    """
    graph = recording.graph
    result = next(n for n in graph.nodes if n.op == "output")
    update = result.args[0][0]
    if update.target is not accumulate or update.args[0] is not theta:
        return None
    block = next((b for b in update.args[2] if _is_outer(b, x)), None)
    if block is None or not is_number(update.args[1]):
        return None
    found = Factors(block.start, shape(block.operands[1])[2], shape(block.operands[0])[1])
    split = next((u for u in theta.users if op_name(u) == "split_with_sizes"), None)
    if split is None or set(theta.users) != {split, update}:
        return None
    reads = _reads(split, found, x)
    if reads is None or _readers(x) != {*reads, update}:
        return None
    _hand_in(graph, x, reads, found)
    _shorten(theta, split, found)
    factor = _hand_out(graph, result, update, block)
    graph.eliminate_dead_code()
    _look_again(graph, theta)
    return found, factor


def _is_outer(block: Block, x: fx.Node) -> bool:
    """Whether a block is the product of gradients ``[C, out, B]`` and the samples themselves."""
    if not block.product or len(shape(block.operands[0])) != 3:
        return False
    clients, outputs, _ = shape(block.operands[0])
    where = (("view", (clients, outputs, shape(block.operands[1])[2])),)
    return _is_samples(block.operands[1], x) and block.path == where


def _is_samples(node: Any, x: fx.Node) -> bool:
    """Whether a node is the samples, each as one row."""
    if not isinstance(node, fx.Node) or len(shape(node)) != 3:
        return False
    same_rows = shape(node)[:2] == shape(x)[:2]
    while op_name(node) in _FLATTENS:
        node = node.args[0]
    return node is x and same_rows


def _reads(split: fx.Node, found: Factors, x: fx.Node) -> list[fx.Node] | None:
    """The layer's products, if nothing else reads its weights."""
    pieces = [u for u in split.users if _offset(split, u.args[1]) == found.start]
    reads = [n for piece in pieces for n in _readers(piece)]
    for node in reads:
        rows, weight = node.args[-2:]
        turned = isinstance(weight, fx.Node) and set(weight.args[1:]) == {1, 2}
        turned = turned and op_name(weight) == "transpose"
        known = op_name(node) in ("bmm", "baddbmm") and not node.kwargs
        if not (known and turned and _is_samples(rows, x)):
            return None
    return reads or None


def _offset(split: fx.Node, number: Any) -> int:
    sizes: Any = split.args[1]
    return sum(sizes[:number]) if sizes[number] else -1


def _readers(node: fx.Node) -> set[fx.Node]:
    """Who reads a value, through views too."""
    found: set[fx.Node] = set()
    for user in node.users:
        found |= _readers(user) if is_view(user) else {user}
    return found


def _hand_in(graph: fx.Graph, x: fx.Node, reads: list[fx.Node], found: Factors) -> None:
    """Let the products be an input."""
    x.meta["val"] = torch.empty(*shape(x)[:2], found.outputs, dtype=dtype(x), device="meta")
    for node in reads:
        made = x
        if op_name(node) == "baddbmm":
            with graph.inserting_before(node):
                made = insert(graph, aten.add.Tensor, x, node.args[0])
        node.replace_all_uses_with(made)


def _shorten(theta: fx.Node, split: fx.Node, found: Factors) -> None:
    """Take the weights out of the vector; pieces keep their numbers."""
    clients, size = shape(theta)
    theta.meta["val"] = torch.empty(clients, size - found.size, dtype=dtype(theta), device="meta")
    sizes: Any = list(split.args[1])  # type: ignore[arg-type]
    gone = next(k for k in range(len(sizes)) if _offset(split, k) == found.start)
    sizes[gone] = 0
    split.update_arg(1, sizes)


def _hand_out(graph: fx.Graph, result: fx.Node, update: fx.Node, block: Block) -> fx.Node:
    """A new input for the rows of ``D``, which become an output."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        factor = graph.placeholder("factor")
    blocks: Any
    total, scale, blocks = update.args
    with graph.inserting_before(update):
        rows = insert(graph, aten.transpose.int, block.operands[0], 1, 2)
        rows = insert(graph, aten.mul.Tensor, rows, scale)
        factor.meta["val"] = torch.empty(shape(rows), dtype=dtype(rows), device="meta")
        left = tuple(_moved(b, block) for b in blocks if b is not block)
        new = graph.call_function(accumulate, (total, scale, left))
        new.meta["val"] = total.meta["val"]  # type: ignore[union-attr]
    update.replace_all_uses_with(new)
    graph.erase_node(update)
    outputs: Any = result.args[0]
    result.args = ((*outputs, rows),)
    return factor


def _moved(block: Block, gone: Block) -> Block:
    return block._replace(start=block.start - gone.size) if block.start > gone.start else block


def _look_again(graph: fx.Graph, theta: fx.Node) -> None:
    """Views of the shortened vector have other strides."""
    for node in graph.nodes:
        if node.op != "call_function" or not is_view(node) or base(node) is not theta:
            continue
        if node.target is operator.getitem:
            node.meta["val"] = value(node.args[0])[node.args[1]]
            continue
        target: Any = node.target
        seen = target(*(zeros_for(a) if isinstance(a, fx.Node) else a for a in node.args))
        many = isinstance(seen, list | tuple)
        node.meta["val"] = [without_memory(t) for t in seen] if many else without_memory(seen)
