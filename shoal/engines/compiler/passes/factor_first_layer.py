"""A step that does not hold the first layer's weights, only what changed them.

Before: ``baddbmm(b, x, W')`` and ``W += -rate * D'x`` on ``W`` of every client.
After: ``b + b0``, where ``b0 = x W'`` is handed in, and ``factor = -rate * D`` handed out.

Under plain SGD the weights of a layer that reads the samples move by products of the samples and
the gradients of its outputs: after a few steps ``W = W0 + D' X`` with the samples ``X`` seen so far
and ``D``, their gradients times minus the rate. Its output for samples ``x`` is then
``x W0' + (x X') D``: the weights themselves, which are most of many a model, need not be written,
nor read again, for any client. The loop that hands in and out is in emit_factored.

Applies, after all other passes, where the model only moves against its gradient, and samples and
weights of the layer meet in one product; the layer is half of the model or more, has
``SMALL_LAYER`` weights, and no fewer outputs than a batch has rows. Exact to rounding.

Serves: W5 1.66.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node

from shoal.engines.compiler.graph import (
    Graph,
    Refused,
    aten,
    base,
    dtype,
    insert,
    is_view,
    look_again,
    op_name,
    shape,
)
from shoal.engines.compiler.passes.gradient_blocks import GradientBlock, accumulate

_FLATTENS = ("view", "_unsafe_view")
SMALL_LAYER = 2**14  # weights below which nothing is won


@dataclass(frozen=True)
class Factors:
    """Where the weights were in the vector, and the layer's sizes."""

    start: int
    inputs: int
    outputs: int

    @property
    def size(self) -> int:
        return self.inputs * self.outputs


def factors_of(graph: Graph) -> Factors | Refused:
    """What :func:`apply` would take out of a step."""
    found = _find(graph)
    return found if isinstance(found, Refused) else found.factors


def apply(graph: Graph) -> Graph | Refused:
    """The first entry of the carry becomes the rest of the model, the batch's samples the layer's
    output without its bias; the rows of ``D`` are a further entry of the carry."""
    new = graph.copy()
    found = _find(new)
    if isinstance(found, Refused):
        return found
    _hand_in(new.fx, new.batch[0], found)
    _shorten(new.carry[0], found)
    new.carry.append(_hand_out(new, found))
    new.fx.eliminate_dead_code()
    for node in new.fx.nodes:  # views of the shortened vector have other strides
        if node.op == "call_function" and is_view(node) and base(node) is new.carry[0]:
            look_again(node)
    return new


class _Layer(NamedTuple):
    """The first layer's place in a step."""

    factors: Factors
    block: GradientBlock  # its weights' gradient
    update: Node
    split: Node  # of the model into its tensors
    reads: list[Node]  # products with its weights


def _find(graph: Graph) -> _Layer | Refused:
    if not (graph.carry and graph.batch):
        return Refused("the step has no model or no batch")
    theta, x = graph.carry[0], graph.batch[0]
    update: Any = graph.returned[0]
    if update.target is not accumulate or update.args[0] is not theta:
        return Refused("the step does more to the model than to subtract the gradient")
    block = next((b for b in update.args[2] if _is_outer(b, x)), None)
    if block is None:
        return Refused("no layer's gradient is a product with the samples themselves")
    factors = Factors(block.start, shape(block.operands[1])[2], shape(block.operands[0])[1])
    if shape(x)[1] > factors.outputs or factors.size < SMALL_LAYER:
        return Refused("the first layer is too small for the rows of a batch")
    if 2 * factors.size < shape(theta)[1]:
        return Refused("the first layer is too small a share of the model")
    split = next((u for u in theta.users if op_name(u) == "split_with_sizes"), None)
    if split is None or set(theta.users) != {split, update}:
        return Refused("the model is read elsewhere than in its layers")
    reads = _reads(split, factors, x)
    if reads is None or _readers(x) != {*reads, update}:
        return Refused("the samples or the first layer's weights are read elsewhere")
    return _Layer(factors, block, update, split, reads)


def _is_outer(block: GradientBlock, x: Node) -> bool:
    """Whether a block is the product of gradients ``[C, out, B]`` and the samples themselves."""
    if not block.product or len(shape(block.operands[0])) != 3:
        return False
    clients, outputs, _ = shape(block.operands[0])
    where = (("view", (clients, outputs, shape(block.operands[1])[2])),)
    return _is_samples(block.operands[1], x) and block.path == where


def _is_samples(node: Any, x: Node) -> bool:
    """Whether a node is the samples, each as one row."""
    if not isinstance(node, Node) or len(shape(node)) != 3:
        return False
    same_rows = shape(node)[:2] == shape(x)[:2]
    while op_name(node) in _FLATTENS:
        node = node.args[0]
    return node is x and same_rows


def _reads(split: Node, found: Factors, x: Node) -> list[Node] | None:
    """The layer's products, if nothing else reads its weights."""
    pieces = [u for u in split.users if _offset(split, u.args[1]) == found.start]
    reads = [n for piece in pieces for n in _readers(piece)]
    for node in reads:
        rows, weight = node.args[-2:]
        turned = isinstance(weight, Node) and set(weight.args[1:]) == {1, 2}
        turned = turned and op_name(weight) == "transpose"
        known = op_name(node) in ("bmm", "baddbmm") and not node.kwargs
        if not (known and turned and _is_samples(rows, x)):
            return None
    return reads or None


def _offset(split: Node, number: Any) -> int:
    sizes: Any = split.args[1]
    return sum(sizes[:number]) if sizes[number] else -1


def _readers(node: Node) -> set[Node]:
    """Who reads a value, through views too."""
    found: set[Node] = set()
    for user in node.users:
        found |= _readers(user) if is_view(user) else {user}
    return found


def _hand_in(fx: FxGraph, x: Node, found: _Layer) -> None:
    """Let the products be an input."""
    sizes = (*shape(x)[:2], found.factors.outputs)
    x.meta["val"] = torch.empty(sizes, dtype=dtype(x), device="meta")
    for node in found.reads:
        made = x
        if op_name(node) == "baddbmm":
            with fx.inserting_before(node):
                made = insert(fx, aten.add.Tensor, x, node.args[0])
        node.replace_all_uses_with(made)


def _shorten(theta: Node, found: _Layer) -> None:
    """Take the weights out of the vector; pieces keep their numbers."""
    clients, size = shape(theta)
    left = size - found.factors.size
    theta.meta["val"] = torch.empty(clients, left, dtype=dtype(theta), device="meta")
    sizes: Any = list(found.split.args[1])  # type: ignore[arg-type]
    starts = range(len(sizes))
    gone = next(k for k in starts if _offset(found.split, k) == found.factors.start)
    sizes[gone] = 0
    found.split.update_arg(1, sizes)


def _hand_out(graph: Graph, found: _Layer) -> Node:
    """A new input for the rows of ``D``, which become an output."""
    factor = graph.add_input("factor", None)
    blocks: Any
    total, scale, blocks = found.update.args
    with graph.fx.inserting_before(found.update):
        rows = insert(graph.fx, aten.transpose.int, found.block.operands[0], 1, 2)
        rows = insert(graph.fx, aten.mul.Tensor, rows, scale)
        factor.meta["val"] = torch.empty(shape(rows), dtype=dtype(rows), device="meta")
        left = tuple(_moved(b, found.block) for b in blocks if b is not found.block)
        new = graph.fx.call_function(accumulate, (total, scale, left))
        new.meta["val"] = total.meta["val"]  # type: ignore[union-attr]
    found.update.replace_all_uses_with(new)
    graph.fx.erase_node(found.update)
    graph.result.args = ((*graph.returned, rows),)
    return factor


def _moved(block: GradientBlock, gone: GradientBlock) -> GradientBlock:
    return block._replace(start=block.start - gone.size) if block.start > gone.start else block
